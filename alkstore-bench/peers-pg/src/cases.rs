//! Who is held against whom, at what, and what is asked of it.

use alkstore_bench::beside::Beside;
use alkstore_bench::contest::{Bar, Case, LIMIT, OURS, Run, run};
use alkstore_bench::handles::CONCURRENT;
use alkstore_bench::pg as ours;
use alkstore_bench::worker::{Engine, by_worker};

use crate::apalis::Apalis;
use crate::graphile::Graphile;
use crate::handlers::{self, MANY};
use crate::underway::Underway;
use crate::{limit, pgmq};

const PGMQ: &str = "pgmq";
const GRAPHILE: &str = "graphile_worker";
const UNDERWAY: &str = "underway";
const APALIS: &str = "apalis";

type Runs = Vec<(&'static str, Run)>;

fn case(name: &str, runs: Runs, bars: &[Bar]) -> Case {
    Case { name: name.to_owned(), runs, bars: bars.to_vec() }
}

/// A workload as each of the peers with handlers runs it.
macro_rules! each_peer {
    ($workload:ident($($argument:expr),*)) => {
        [
            run(GRAPHILE, move || handlers::$workload::<Graphile>($($argument),*)),
            run(UNDERWAY, move || handlers::$workload::<Underway>($($argument),*)),
            run(APALIS, move || handlers::$workload::<Apalis>($($argument),*)),
        ]
    };
}

pub fn all() -> Vec<Case> {
    let mut cases = enqueues();
    cases.extend(claims());
    cases.extend(flows());
    cases.extend(streams());
    cases.extend(notifications());
    cases
}

/// What rows beside cost: ours alone.
pub fn alone() -> Vec<Case> {
    ours::workloads().into_iter().map(Case::from).collect()
}

fn enqueues() -> Vec<Case> {
    let enqueue = |name, tasks, factor| {
        let mut runs =
            vec![run(OURS, move || ours::enqueue(tasks)), run(PGMQ, move || pgmq::enqueue(tasks))];
        runs.extend(each_peer!(enqueue(tasks)));
        runs.push(run(LIMIT, move || async move {
            if tasks == 1 {
                limit::enqueue(1, false).await
            } else {
                limit::enqueue_together(tasks).await
            }
        }));
        case(name, runs, &[Bar::Peer(factor)])
    };
    let many = |name, batch, factor| {
        let mut runs = vec![
            run(OURS, move || ours::enqueue_many(batch)),
            run(PGMQ, move || pgmq::enqueue_many(batch)),
        ];
        runs.extend(each_peer!(enqueue_many(batch)));
        runs.push(run(LIMIT, move || limit::enqueue_many(batch)));
        case(name, runs, &[Bar::Peer(factor)])
    };
    vec![
        enqueue("enqueue, 1 producer", 1, 1.3),
        enqueue("enqueue, 64 at once", CONCURRENT, 15.0),
        many("enqueue, 100 a call", 100, 1.0),
        many("enqueue, 1,000 a call", 1_000, 1.3),
        case(
            "one enqueue alone, p50",
            vec![run(OURS, ours::enqueue_alone), run(LIMIT, limit::enqueue_alone)],
            &[Bar::Limit(1.2)],
        ),
    ]
}

fn claims() -> Vec<Case> {
    const ONE: &str = "claim 32 + ack 32, 1 worker";
    const FOUR: &str = "claim 32 + ack 32, 4 workers";
    let drain = |name, workers, batch, bars: &[Bar]| {
        let runs = vec![
            run(OURS, move || ours::drain(workers, batch)),
            run(PGMQ, move || pgmq::drain(workers, batch)),
            run(LIMIT, move || limit::drain(workers, batch)),
        ];
        case(name, runs, bars)
    };
    let mut one_by_one = drain("claim + ack one by one", 1, 1, &[Bar::Peer(1.0)]);
    let backlog = ours::backlog(1);
    one_by_one.runs.extend([
        run(UNDERWAY, move || handlers::drain::<Underway>(1, backlog)),
        run(APALIS, move || handlers::drain::<Apalis>(1, backlog)),
    ]);
    let beside = Beside::Claimed(100_000);
    let worker = vec![
        run(OURS, || by_worker(Engine::Postgres, MANY)),
        run(GRAPHILE, || handlers::drain::<Graphile>(MANY, 10_000)),
        run(UNDERWAY, || handlers::drain::<Underway>(MANY, 400)),
        run(APALIS, || handlers::drain::<Apalis>(MANY, 1_500)),
    ];
    vec![
        one_by_one,
        drain(ONE, 1, 32, &[Bar::Peer(1.0)]),
        drain(FOUR, 4, 32, &[Bar::Peer(1.0)]),
        drain("claim 256 + ack 256, 1 worker", 1, 256, &[Bar::PeerIn(1.5, PGMQ, ONE)]),
        drain("claim 256 + ack 256, 4 workers", 4, 256, &[Bar::PeerIn(1.5, PGMQ, FOUR)]),
        case(
            "claim + ack behind 100k claimed",
            vec![run(OURS, move || ours::growth(beside)), run(PGMQ, pgmq::behind_claimed)],
            &[Bar::Peer(30.0)],
        ),
        case("worker, 32 trivial handlers at once", worker, &[Bar::Peer(1.5)]),
    ]
}

fn flows() -> Vec<Case> {
    let pipeline = |name, in_flight, factor| {
        let mut runs = vec![
            run(OURS, move || ours::pipeline(in_flight)),
            run(PGMQ, move || pgmq::pipeline(in_flight)),
        ];
        runs.extend(each_peer!(pipeline(in_flight)));
        runs.push(run(LIMIT, move || limit::pipeline(in_flight)));
        case(name, runs, &[Bar::Peer(factor)])
    };
    let mut wakes = vec![run(OURS, ours::wake), run(PGMQ, pgmq::wake)];
    wakes.extend(each_peer!(wake()));
    wakes.push(run(LIMIT, limit::wake));
    vec![
        pipeline("2 producers + 4 workers", 1, 1.3),
        pipeline("2 producers, 64 in flight each, + 4 workers", CONCURRENT, 6.0),
        case("wake, p50", wakes, &[Bar::Peer(0.5)]),
    ]
}

fn streams() -> Vec<Case> {
    let publish = |name, batch| {
        let runs = vec![
            run(OURS, move || ours::publish(batch)),
            run(LIMIT, move || limit::publish(batch)),
        ];
        case(name, runs, &[Bar::Limit(0.7)])
    };
    vec![
        publish("publish, 1 a call", 1),
        publish("publish, 100 a call", 100),
        case(
            "read, 1,000 a call",
            vec![run(OURS, ours::read), run(LIMIT, limit::read)],
            &[Bar::Limit(0.7)],
        ),
    ]
}

/// What it costs that commits notify.
fn notifications() -> Vec<Case> {
    let committers = |count: usize, wake: bool| {
        let runs = vec![
            run(OURS, move || ours::committers(count, wake)),
            run(LIMIT, move || limit::enqueue(count, wake)),
        ];
        let told = if wake { "each notifies" } else { "none notifies" };
        case(&format!("{count} committers, {told}"), runs, &[])
    };
    [1, 4, 16].into_iter().flat_map(|n| [committers(n, false), committers(n, true)]).collect()
}
