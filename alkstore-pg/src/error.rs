//! What an operation on a connection fails with, and what of that its caller hears.

use alkstore_core::{BoxError, Error};

/// What an operation on a connection fails with.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The driver's own error.
    Sql(sqlx::Error),
    /// An error of the contract.
    Contract(Error),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Contract(error)
    }
}

pub(crate) type Outcome<T> = std::result::Result<T, Failure>;

/// What was under way when a connection failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing that writes was sent, or nothing of it can be committed.
    Harmless,
    /// Something that commits was sent.
    Sent,
}

/// Deadlocks and serialization failures: whoever owns the work may do it again.
const REPEATED: [&str; 2] = ["40001", "40P01"];

/// The server ended the connection: nothing says whether what was sent before has committed.
const ENDED: [&str; 2] = ["57P01", "57P02"];

/// The database can't be written: it stands by, or the connection has outlived a failover.
const READ_ONLY: &str = "25006";

impl Failure {
    /// The SQLSTATE of an error that the server sent.
    pub(crate) fn code(&self) -> Option<String> {
        match self {
            Self::Sql(sqlx::Error::Database(error)) => error.code().map(Into::into),
            _ => None,
        }
    }

    /// Whether the same work may succeed when it is done again at once.
    pub(crate) fn is_repeated(&self) -> bool {
        self.code().is_some_and(|code| REPEATED.contains(&code.as_str()))
    }

    /// Whether the connection is of no use any longer.
    pub(crate) fn breaks_connection(&self) -> bool {
        match self {
            Self::Contract(_) => false,
            Self::Sql(sqlx::Error::Database(_)) => self
                .code()
                .is_none_or(|code| code == READ_ONLY || code.starts_with("57P") || is_lost(&code)),
            Self::Sql(
                sqlx::Error::RowNotFound
                | sqlx::Error::ColumnDecode { .. }
                | sqlx::Error::Decode(_)
                | sqlx::Error::ColumnNotFound(_)
                | sqlx::Error::ColumnIndexOutOfBounds { .. },
            ) => false,
            Self::Sql(_) => true,
        }
    }

    /// Whether a server that is starting or full may take a connection later.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Sql(sqlx::Error::Io(_)) => true,
            _ => self.code().is_some_and(|code| code.starts_with("57P") || code.starts_with("53")),
        }
    }

    /// The error as a caller hears it.
    pub(crate) fn into_error(self, stage: Stage) -> Error {
        let code = self.code();
        match self {
            Self::Contract(error) => error,
            Self::Sql(error) => match code {
                Some(code) => answered(&code, error, stage),
                None => unanswered(error, stage),
            },
        }
    }
}

fn is_lost(code: &str) -> bool {
    code.starts_with("08")
}

fn boxed(error: sqlx::Error) -> Option<BoxError> {
    Some(Box::new(error))
}

/// The server said what is wrong.
fn answered(code: &str, error: sqlx::Error, stage: Stage) -> Error {
    let text = match &error {
        sqlx::Error::Database(error) => error.message().to_owned(),
        other => other.to_string(),
    };
    if ENDED.contains(&code) && stage == Stage::Sent {
        let message = format!("the server ended the connection: {text}");
        return Error::CommitUnknown { message, source: boxed(error) };
    }
    let unavailable = match code {
        "55P03" => Some(
            "somebody else's transaction held what was needed for longer than the lock timeout"
                .to_owned(),
        ),
        "57014" => Some(format!("the server cancelled the statement: {text}")),
        READ_ONLY => Some(format!("the server can't be written, it stands by: {text}")),
        _ if REPEATED.contains(&code) => {
            Some(format!("another transaction was in the way: {text}"))
        }
        _ if code.starts_with("57P") || code.starts_with("53") || is_lost(code) => {
            Some(text.clone())
        }
        _ => None,
    };
    if let Some(message) = unavailable {
        return Error::Unavailable { message, source: boxed(error) };
    }
    let message = match code {
        "28P01" | "28000" => format!(
            "the server refused the login: {text}; check the user and the password of the URL"
        ),
        "3D000" => format!("{text}; create the database, or name another one in the URL"),
        "42501" => format!(
            "{text}; the role needs CREATE on the database to make the schema, and USAGE on the schema and all privileges on what is in it to use it"
        ),
        "42P01" | "42883" | "3F000" => format!(
            "{text}; the store's schema was dropped or changed under it: open the store again"
        ),
        "25P02" | "25P01" => format!("the transaction is over: {text}"),
        _ => text,
    };
    Error::Engine { message, source: boxed(error) }
}

/// The connection failed, or something did on this side of it.
fn unanswered(error: sqlx::Error, stage: Stage) -> Error {
    let text = error.to_string();
    match &error {
        sqlx::Error::Io(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => match stage {
            Stage::Sent => Error::CommitUnknown {
                message: format!("the connection was lost: {text}"),
                source: boxed(error),
            },
            Stage::Harmless => Error::Unavailable {
                message: format!("no connection to the server: {text}"),
                source: boxed(error),
            },
        },
        sqlx::Error::Tls(_) => Error::Engine {
            message: format!(
                "{text}; check sslmode and the certificates of the URL, and whether the server has TLS turned on"
            ),
            source: boxed(error),
        },
        _ => Error::Engine { message: text, source: boxed(error) },
    }
}
