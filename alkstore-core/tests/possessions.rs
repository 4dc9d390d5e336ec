//! What a program may not do with what it holds doesn't compile, and the compiler says why.
//!
//! The texts are those of the Rust that the workspace names. With another one, look at what
//! changed, then write them anew: `TRYBUILD=overwrite cargo test -p alkstore-core`.

#[test]
fn misuse_of_a_possession_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/possessions/*.rs");
}
