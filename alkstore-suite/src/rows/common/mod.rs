//! Rows of docs/architecture/common.md.
