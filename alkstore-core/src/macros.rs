//! What option structs and numbers have in common.

macro_rules! setters {
    ($type:ident { $($(#[$doc:meta])* $field:ident: $arg:ty => $value:expr;)* }) => {
        impl $type {
            /// The defaults.
            #[must_use]
            pub fn new() -> Self {
                Self::default()
            }
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $field(mut self, $field: $arg) -> Self {
                    self.$field = $value;
                    self
                }
            )*
        }
    };
}
pub(crate) use setters;

macro_rules! ids {
    ($($(#[$doc:meta])* $type:ident >= $least:literal;)*) => {$(
        $(#[$doc])*
        #[derive(
            Debug,
            Clone,
            Copy,
            PartialEq,
            Eq,
            PartialOrd,
            Ord,
            Hash,
            serde::Serialize,
            serde::Deserialize,
        )]
        #[serde(try_from = "i64", into = "i64")]
        pub struct $type(i64);

        impl $type {
            /// For engines: a number that was given out before.
            #[must_use]
            pub const fn stored(number: i64) -> Self {
                Self(number)
            }

            /// The number as an integer.
            #[must_use]
            pub const fn get(self) -> i64 {
                self.0
            }
        }

        impl TryFrom<i64> for $type {
            type Error = crate::Error;

            fn try_from(number: i64) -> crate::Result<Self> {
                if number < $least {
                    return Err(crate::Error::invalid_argument(
                        stringify!($type),
                        number,
                        concat!("a whole number of at least ", $least),
                    ));
                }
                Ok(Self(number))
            }
        }

        impl From<$type> for i64 {
            fn from(id: $type) -> Self {
                id.0
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
pub(crate) use ids;
