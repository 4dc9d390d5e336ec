/// Every row, by mechanism, with the capabilities it needs: the one list that the table of rows
/// and the tests of a column are made from.
#[doc(hidden)]
#[macro_export]
macro_rules! __rows {
    ([$($callback:tt)*] $($args:tt)*) => {
        $($callback)* ! { $($args)*
            common {
            }
            queue {
                q1_a_job_comes_back_as_it_was_enqueued []
            }
            stream {
            }
            notify {
            }
            lock {
            }
            schedule {
            }
            outbox {
            }
            tx {
            }
        }
    };
}
