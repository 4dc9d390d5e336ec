//! The pages of docs/guide/: what they show compiles, and what they run runs.

macro_rules! pages {
    ($($module:ident: $page:literal;)*) => {$(
        #[doc = include_str!(concat!("../../docs/guide/", $page))]
        mod $module {}
    )*};
}

pages! {
    engines: "engines.md";
    first_job: "first-job.md";
    exactly_once_effects: "exactly-once-effects.md";
    locks: "locks.md";
    production: "production.md";
    schedules: "schedules.md";
    sql: "sql.md";
    streams: "streams.md";
    testing: "testing.md";
    transactional_outbox: "transactional-outbox.md";
}
