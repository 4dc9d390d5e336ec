//! Who is held against whom, at what, and what is asked of it.

use alkstore_bench::beside::{Beside, MILLION};
use alkstore_bench::contest::{Bar, Case, LIMIT, OURS, Run, blocking, run};
use alkstore_bench::handles::CONCURRENT;
use alkstore_bench::sqlite as ours;
use alkstore_sqlite::Durability;

use crate::{honker, limit};

const PEER: &str = "honker";

fn case(name: &str, durability: Durability, runs: Vec<(&'static str, Run)>, bars: &[Bar]) -> Case {
    let name = format!("{name}, {}", format!("{durability:?}").to_uppercase());
    Case { name, runs, bars: bars.to_vec() }
}

pub fn all() -> Vec<Case> {
    let mut cases = enqueues(Durability::Normal);
    cases.extend(claims(Durability::Normal));
    cases.extend(wakes_and_streams(Durability::Normal));
    cases.extend(enqueues(Durability::Full));
    cases.extend(claims(Durability::Full));
    cases.extend(wakes_and_streams(Durability::Full));
    cases.push(Case {
        name: "processor time of an idle listener".to_owned(),
        runs: vec![run(OURS, ours::idle), blocking(PEER, honker::idle)],
        bars: vec![Bar::Peer(0.2)],
    });
    cases
}

/// What a million rows beside cost, and how long a claim holds the write lock: ours alone.
pub fn alone() -> Vec<Case> {
    ours::workloads().into_iter().map(Case::from).collect()
}

/// What a million jobs ready cost; each contestant fills a table of its own, which takes time.
pub fn growth() -> Case {
    Case {
        name: "claim + ack at 1M ready, NORMAL".to_owned(),
        runs: vec![
            run(OURS, || ours::growth(Beside::Ready(MILLION))),
            run(PEER, honker::at_a_million),
        ],
        bars: vec![Bar::Peer(1_000.0)],
    }
}

fn is_full(durability: Durability) -> bool {
    durability == Durability::Full
}

/// With FULL, what the peer reaches with NORMAL as well.
fn and_peer_of(durability: Durability, bar: Bar, other: &'static str) -> Vec<Bar> {
    if is_full(durability) { vec![bar, Bar::PeerOf(other)] } else { vec![bar] }
}

fn enqueues(d: Durability) -> Vec<Case> {
    let mut together = and_peer_of(
        d,
        Bar::Peer(if is_full(d) { 15.0 } else { 4.0 }),
        "enqueue, 64 at once, NORMAL",
    );
    if is_full(d) {
        together.push(Bar::OursOf(10.0, "enqueue, 1 producer, FULL"));
    }
    vec![
        case(
            "enqueue, 1 producer",
            d,
            vec![
                run(OURS, move || ours::enqueue(d, 1)),
                blocking(PEER, move || honker::enqueue(d, 1)),
                blocking(LIMIT, move || limit::enqueue(d)),
            ],
            &[Bar::Peer(1.3)],
        ),
        case(
            "enqueue, 64 at once",
            d,
            vec![
                run(OURS, move || ours::enqueue(d, CONCURRENT)),
                blocking(PEER, move || honker::enqueue(d, CONCURRENT)),
                run(LIMIT, move || limit::enqueue_together(d, CONCURRENT)),
            ],
            &together,
        ),
        case(
            "enqueue, 100 a call",
            d,
            vec![
                run(OURS, move || ours::enqueue_many(d)),
                blocking(PEER, move || honker::enqueue_many(d)),
                blocking(LIMIT, move || limit::enqueue_many(d)),
            ],
            &and_peer_of(d, Bar::Peer(5.0), "enqueue, 100 a call, NORMAL"),
        ),
        case(
            "one enqueue alone, p50",
            d,
            vec![
                run(OURS, move || ours::enqueue_alone(d)),
                blocking(PEER, move || honker::enqueue_alone(d)),
                blocking(LIMIT, move || limit::enqueue_alone(d)),
            ],
            if is_full(d) { &[Bar::Limit(1.2)] } else { &[] },
        ),
    ]
}

fn claims(d: Durability) -> Vec<Case> {
    let drain = |name, workers, batch, bars: &[Bar]| {
        case(
            name,
            d,
            vec![
                run(OURS, move || ours::drain(d, workers, batch)),
                blocking(PEER, move || honker::drain(d, workers, batch)),
                blocking(LIMIT, move || limit::drain(d, workers, batch)),
            ],
            bars,
        )
    };
    let pipeline = |name, in_flight, bars: &[Bar]| {
        let limit = if in_flight == 1 {
            blocking(LIMIT, move || limit::pipeline(d))
        } else {
            run(LIMIT, move || limit::pipeline_together(d, in_flight))
        };
        case(
            name,
            d,
            vec![
                run(OURS, move || ours::pipeline(d, in_flight)),
                blocking(PEER, move || honker::pipeline(d, in_flight)),
                limit,
            ],
            bars,
        )
    };
    let (one, four) = ("claim 32 + ack 32, 1 worker", "claim 32 + ack 32, 4 workers");
    let (few, many) = ("2 producers + 4 workers", "2 producers, 64 in flight each, + 4 workers");
    vec![
        drain("claim + ack one by one", 1, 1, &[Bar::Peer(if is_full(d) { 2.5 } else { 5.0 })]),
        drain(one, 1, 32, &and_peer_of(d, Bar::Peer(3.0), "claim 32 + ack 32, 1 worker, NORMAL")),
        drain(four, 4, 32, &and_peer_of(d, Bar::Peer(3.0), "claim 32 + ack 32, 4 workers, NORMAL")),
        pipeline(few, 1, &and_peer_of(d, Bar::Peer(1.3), "2 producers + 4 workers, NORMAL")),
        pipeline(
            many,
            64,
            &and_peer_of(d, Bar::Peer(6.0), "2 producers, 64 in flight each, + 4 workers, NORMAL"),
        ),
    ]
}

fn wakes_and_streams(d: Durability) -> Vec<Case> {
    let publish = |name, batch, bars: &[Bar]| {
        case(
            name,
            d,
            vec![
                run(OURS, move || ours::publish(d, batch)),
                blocking(PEER, move || honker::publish(d, batch)),
                blocking(LIMIT, move || limit::publish(d, batch)),
            ],
            bars,
        )
    };
    let mut cases = vec![
        case(
            "wake in process, p50",
            d,
            vec![
                run(OURS, move || ours::wake(d)),
                blocking(PEER, move || honker::wake(d)),
                blocking(LIMIT, move || limit::wake(d)),
            ],
            &[Bar::Peer(0.5)],
        ),
        case(
            "wake across processes, p50",
            d,
            vec![
                run(OURS, move || ours::wake_across(d)),
                blocking(PEER, move || honker::wake_across(d)),
            ],
            &[Bar::Peer(1.0)],
        ),
        publish("publish, 1 a call", 1, &[]),
        publish(
            "publish, 100 a call",
            100,
            &and_peer_of(d, Bar::Peer(4.0), "publish, 100 a call, NORMAL"),
        ),
    ];
    if !is_full(d) {
        cases.push(case(
            "read, 1,000 a call",
            d,
            vec![
                run(OURS, move || ours::read(d)),
                blocking(PEER, move || honker::read(d)),
                blocking(LIMIT, move || limit::read(d)),
            ],
            &[Bar::Peer(4.0)],
        ));
    }
    cases
}
