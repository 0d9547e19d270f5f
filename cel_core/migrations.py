"""The store's schema as numbered steps. Append only: a step that has been released is never edited.

`STEPS[i]` brings a store from version i to version i + 1.
"""

STEPS: tuple[str, ...] = (
    # 1: outcomes keyed by content; searches as plans over them
    """
    CREATE SEQUENCE ids START 1;
    CREATE TABLE protocols (id INTEGER PRIMARY KEY DEFAULT nextval('ids'), key TEXT UNIQUE NOT NULL, content TEXT NOT NULL);
    CREATE TABLE head_sets (id INTEGER PRIMARY KEY DEFAULT nextval('ids'), name TEXT UNIQUE NOT NULL);
    CREATE TABLE examples (
        id INTEGER PRIMARY KEY DEFAULT nextval('ids'), key TEXT UNIQUE NOT NULL, task TEXT NOT NULL, kind TEXT NOT NULL,
        context TEXT NOT NULL, continuations TEXT[] NOT NULL, gold INTEGER NOT NULL, answer TEXT NOT NULL, tests TEXT[] NOT NULL
    );
    CREATE TABLE outcomes (
        protocol INTEGER NOT NULL, head_set INTEGER NOT NULL, example INTEGER NOT NULL,
        correct BOOLEAN NOT NULL, answer TEXT NOT NULL, margin_nats FLOAT, logprobs_nats FLOAT[] NOT NULL, detail TEXT NOT NULL,
        PRIMARY KEY (protocol, head_set, example)
    );
    CREATE TABLE searches (
        id TEXT PRIMARY KEY, created_at TIMESTAMPTZ NOT NULL, updated_at TIMESTAMPTZ NOT NULL, owner TEXT NOT NULL,
        status TEXT NOT NULL, stage TEXT NOT NULL, done BIGINT NOT NULL, total BIGINT NOT NULL,
        config TEXT NOT NULL, model TEXT, environment TEXT NOT NULL, protocol INTEGER, n_discovery INTEGER, n_held_out INTEGER,
        notes TEXT[] NOT NULL, error TEXT NOT NULL, duration_s DOUBLE NOT NULL,
        frozen_set TEXT, frozen_at TIMESTAMPTZ, discovery_gain DOUBLE,
        held_out_intact INTEGER, held_out_ablated INTEGER, held_out_fixes INTEGER, held_out_harms INTEGER
    );
    CREATE TABLE search_examples (
        search TEXT NOT NULL, example INTEGER NOT NULL, part TEXT NOT NULL, position INTEGER NOT NULL,
        PRIMARY KEY (search, example)
    );
    CREATE TABLE rankings (
        search TEXT NOT NULL, stage INTEGER NOT NULL, rank INTEGER NOT NULL, head_set TEXT NOT NULL,
        fixes INTEGER NOT NULL, harms INTEGER NOT NULL, n_correct INTEGER NOT NULL, n INTEGER NOT NULL,
        exact BOOLEAN NOT NULL,
        PRIMARY KEY (search, stage, rank)
    );
    """,
    # 2: toy runs, down-sampled, and populations' figures; both keyed by a hash of all that they depend on
    """
    CREATE TABLE toy_runs (
        key TEXT PRIMARY KEY, method TEXT NOT NULL, config TEXT NOT NULL, created_at TIMESTAMPTZ NOT NULL,
        converged BOOLEAN NOT NULL, diverged_by BIGINT
    );
    CREATE TABLE toy_points (run TEXT NOT NULL, step BIGINT NOT NULL, coefficients DOUBLE[] NOT NULL, PRIMARY KEY (run, step));
    CREATE TABLE toy_populations (
        key TEXT PRIMARY KEY, n_seeds INTEGER NOT NULL, config TEXT NOT NULL, created_at TIMESTAMPTZ NOT NULL,
        summary TEXT NOT NULL
    );
    """,
    # 3: the bill of a search, in tokens run through layers, beside what one full pass per head set and request would cost
    """
    ALTER TABLE searches ADD COLUMN token_layers DOUBLE DEFAULT 0;
    ALTER TABLE searches ADD COLUMN plain_token_layers DOUBLE;
    """,
)
