//! Every statement that runs often finds its rows by an index and in the order it wants them.

use rusqlite::Connection;

use crate::store::Durability;
use crate::{lock, migrate, notify, queue, schedule, stream};

fn plan(conn: &Connection, statement: &str) -> Vec<String> {
    let mut explain = conn.prepare(&format!("EXPLAIN QUERY PLAN {statement}")).unwrap();
    // What isn't bound is NULL; the plan is the same.
    let steps = explain.raw_query().mapped(|row| row.get("detail")).collect::<Result<_, _>>();
    steps.unwrap()
}

#[test]
fn no_statement_that_runs_often_scans_a_table_or_sorts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("plans.db");
    let conn = migrate::writer(&path, Durability::Normal).unwrap();
    let others = [stream::HOT, notify::HOT, lock::HOT, schedule::HOT];
    let mut steps = 0;
    for statement in queue::HOT.into_iter().chain(others).flatten() {
        for step in plan(&conn, statement) {
            // The oldest page of the messages is read in the order in which it lies.
            let is_page = step == "SCAN alkstore_messages" && statement.contains("LIMIT");
            let is_subquery = step.starts_with("SCAN (subquery") || step == "SCAN CONSTANT ROW";
            // What a call brings with it.
            let is_list = step.starts_with("SCAN json_each");
            let scans = step.starts_with("SCAN") && !is_page && !is_subquery && !is_list;
            let sorts = step.contains("TEMP B-TREE");
            assert!(!scans && !sorts, "{step}\n{statement}");
            steps += 1;
        }
    }
    assert!(steps > 30, "{steps} steps in all");
}
