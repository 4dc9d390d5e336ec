//! What stands in a table of jobs beside those that are claimed; the engines with databases number
//! the states alike.

pub const MILLION: u64 = 1_000_000;

/// What stands in the table beside the jobs that are claimed, and how many of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    Nothing,
    Ready(u64),
    Priorities,
    Delayed(u64),
    Claimed(u64),
    Lapsed,
    Expired,
    Dead(u64),
    OtherQueues(u64),
    FellDue,
}

/// The SQL of what row `i` has, `now` being what the clock shows in milliseconds.
#[derive(Debug)]
pub struct Rows {
    pub count: u64,
    pub queue: &'static str,
    pub state: u8,
    pub at: String,
    pub priority: &'static str,
    pub attempt: u8,
    pub expires_at: String,
}

impl Beside {
    pub fn rows(self, now: u64) -> Rows {
        let ready = Rows {
            count: MILLION,
            queue: "'q'",
            state: 0,
            at: format!("{now} - 1000"),
            priority: "0",
            attempt: 0,
            expires_at: "NULL".to_owned(),
        };
        let long_ago = format!("{now} - 3600000");
        match self {
            Self::Nothing => Rows { count: 0, ..ready },
            Self::Ready(count) => Rows { count, ..ready },
            Self::Priorities => Rows { priority: "i % 1000", ..ready },
            Self::Delayed(count) => {
                Rows { count, state: 1, at: format!("{now} + 3600000 + i"), ..ready }
            }
            Self::Claimed(count) => {
                Rows { count, state: 2, at: format!("{now} + 3600000 + i"), attempt: 1, ..ready }
            }
            Self::Lapsed => Rows { state: 3, at: long_ago, attempt: 3, ..ready },
            Self::Expired => {
                Rows { at: long_ago, priority: "-1", expires_at: format!("{now} - 1000"), ..ready }
            }
            Self::Dead(count) => Rows { count, state: 4, at: long_ago, attempt: 3, ..ready },
            Self::OtherQueues(count) => Rows { count, queue: "'other-' || (i % 10000)", ..ready },
            Self::FellDue => Rows { state: 1, ..ready },
        }
    }
}
