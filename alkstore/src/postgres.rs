//! `postgres:`, the Postgres engine.

use std::sync::Arc;

use alkstore_core::{Error, Result, Store};
use alkstore_pg::PgStore;

use crate::StoreConfig;
use crate::params::{Params, at_least_one, decoded};
use crate::url::masked;

const PARAMETERS: [&str; 7] = [
    "schema",
    "max_connections",
    "lock_timeout",
    "operation_timeout",
    "payload_limit",
    "pooled",
    "listen_url",
];

/// What the driver reads of a URL, beside its host, user and database.
const OF_THE_DRIVER: [&str; 12] = [
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "application_name",
    "options",
    "host",
    "hostaddr",
    "port",
    "user",
    "password",
    "dbname",
];

pub(crate) async fn open(config: &StoreConfig) -> Result<Arc<dyn Store>> {
    let (scheme, rest) = config.url.split_once(':').unwrap_or_default();
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !address.starts_with("//") {
        return Err(Error::invalid_argument(
            "url",
            masked(&config.url),
            "an address after \"postgres:\", for instance \
             \"postgres://user:password@host:5432/database\"",
        ));
    }
    config.only("postgres:", &PARAMETERS)?;
    let known = [&PARAMETERS[..], &OF_THE_DRIVER].concat();
    let params = Params::parse("postgres:", query, &known)?;

    let url = format!("{}:{address}{}", scheme.to_ascii_lowercase(), of_the_driver(query)?);
    let mut builder = PgStore::builder(&url);
    if let Some(schema) = params.or_given("schema", config.schema.clone(), Params::text)? {
        builder = builder.schema(schema);
    }
    let given = config.max_connections.map(|count| at_least_one("max_connections", count));
    if let Some(count) = params.or_given("max_connections", given.transpose()?, Params::count)? {
        builder = builder.max_connections(count);
    }
    if let Some(timeout) = params.or_given("lock_timeout", config.lock_timeout, Params::duration)? {
        builder = builder.lock_timeout(timeout);
    }
    let given = config.operation_timeout;
    if let Some(timeout) = params.or_given("operation_timeout", given, Params::duration)? {
        builder = builder.operation_timeout(timeout);
    }
    let given = config.payload_limit.map(|bytes| at_least_one("payload_limit", bytes));
    if let Some(bytes) = params.or_given("payload_limit", given.transpose()?, Params::size)? {
        builder = builder.payload_limit(bytes);
    }
    if let Some(pooled) = params.or_given("pooled", config.pooled, Params::yes_or_no)? {
        builder = builder.pooled(pooled);
    }
    if let Some(url) = params.or_given("listen_url", config.listen_url.clone(), Params::text)? {
        builder = builder.listen_url(url);
    }
    Ok(Arc::new(builder.connect().await?))
}

/// The part of the query that goes to the driver, as it was given.
fn of_the_driver(query: &str) -> Result<String> {
    let mut kept = String::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let name = pair.split_once('=').map_or(pair, |(name, _)| name);
        if OF_THE_DRIVER.contains(&decoded("parameter", name)?.as_str()) {
            kept.push(if kept.is_empty() { '?' } else { '&' });
            kept.push_str(pair);
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_gets_what_is_its_own() {
        let query = "schema=jobs&sslmode=require&max_connections=8&application%5Fname=a%20b";
        let kept = of_the_driver(query).unwrap();
        assert_eq!(kept, "?sslmode=require&application%5Fname=a%20b");
        assert_eq!(of_the_driver("schema=jobs").unwrap(), "");
    }
}
