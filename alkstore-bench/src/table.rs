//! The readings of all rounds, the verdicts, the table and the JSON.

use std::collections::BTreeMap;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::contest::{Bar, Case, LIMIT, OURS};
use crate::measure::{Reading, median};

/// How much of the limit is asked for at most.
const OF_LIMIT: f64 = 0.8;

#[derive(Default)]
pub struct Readings {
    values: BTreeMap<(String, &'static str), Vec<f64>>,
    units: BTreeMap<String, (&'static str, bool)>,
}

#[derive(Serialize)]
struct Line<'a> {
    workload: &'a str,
    unit: &'a str,
    rounds: BTreeMap<&'a str, &'a [f64]>,
    targets: Vec<Verdict>,
}

#[derive(Serialize)]
struct Verdict {
    target: String,
    /// What was reached of it, round by round: 1 and more meets it.
    reached: Vec<f64>,
    met: bool,
}

impl Readings {
    pub fn add(&mut self, case: &str, who: &'static str, reading: Reading) {
        self.values.entry((case.to_owned(), who)).or_default().push(reading.value());
        let unit = (reading.unit(), reading.is_better_when_more());
        self.units.insert(case.to_owned(), unit);
    }

    /// A round without a reading.
    pub fn miss(&mut self, case: &str, who: &'static str) {
        self.values.entry((case.to_owned(), who)).or_default().push(f64::NAN);
    }

    fn of(&self, case: &str, who: &'static str) -> &[f64] {
        self.values.get(&(case.to_owned(), who)).map_or(&[], Vec::as_slice)
    }

    /// The best of all peers, round by round.
    fn best_peer(&self, case: &str) -> Vec<f64> {
        let more = self.units.get(case).is_none_or(|(_, more)| *more);
        let peers = self.values.iter().filter(|((of, who), _)| of == case && is_peer(who));
        let mut best: Vec<f64> = Vec::new();
        for (_, rounds) in peers {
            best.resize(best.len().max(rounds.len()), f64::NAN);
            for (best, &value) in best.iter_mut().zip(rounds) {
                // One that is missing is none of the two.
                *best = if more { best.max(value) } else { best.min(value) };
            }
        }
        best
    }

    fn judge(&self, case: &Case, bar: Bar) -> Option<Verdict> {
        let more = self.units.get(&case.name)?.1;
        let (ours, limits) = (self.of(&case.name, OURS), self.of(&case.name, LIMIT));
        let times = |other: &[f64], factor: f64| -> Vec<f64> {
            other.iter().map(|other| other * factor).collect()
        };
        // Or a part of the limit, where that asks for less.
        let at_most_limit = |asked: Vec<f64>| -> Vec<f64> {
            let lower = |(round, asked): (usize, f64)| match limits.get(round) {
                Some(limit) if more => asked.min(limit * OF_LIMIT),
                Some(limit) => asked.max(limit / OF_LIMIT),
                None => asked,
            };
            asked.into_iter().enumerate().map(lower).collect()
        };
        let sign = if more { '≥' } else { '≤' };
        let (target, asked) = match bar {
            Bar::Peer(factor) => (
                format!("{sign} {factor} × best peer"),
                at_most_limit(times(&self.best_peer(&case.name), factor)),
            ),
            Bar::PeerIn(factor, who, other) => (
                format!("{sign} {factor} × {who}: {other}"),
                at_most_limit(times(self.of(other, who), factor)),
            ),
            Bar::PeerOf(other) => (format!("{sign} peer: {other}"), self.best_peer(other)),
            Bar::OursOf(factor, other) => {
                (format!("{sign} {factor:.2} × ours: {other}"), times(self.of(other, OURS), factor))
            }
            Bar::AtMost(most) => (format!("{sign} {most:.0}"), vec![most; ours.len()]),
            Bar::Limit(factor) => (format!("{sign} {factor} × limit"), times(limits, factor)),
        };
        let reached: Vec<f64> = ours
            .iter()
            .zip(&asked)
            .map(|(ours, asked)| if more { ours / asked } else { asked / ours })
            .collect();
        let met = reached.iter().filter(|&&part| part >= 1.0).count();
        let met = !reached.is_empty() && 5 * met >= 4 * reached.len();
        Some(Verdict { target, reached, met })
    }

    /// Who takes part: ours first, the limit last.
    fn contestants(&self) -> Vec<&'static str> {
        let mut all: Vec<_> = self.values.keys().map(|(_, who)| *who).collect();
        all.sort_unstable_by_key(|who| (*who == LIMIT, is_peer(who), *who));
        all.dedup();
        all
    }

    pub fn table(&self, cases: &[Case]) -> String {
        let contestants = self.contestants();
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN);
        let mut header = vec!["workload", "unit"];
        header.extend(&contestants);
        header.extend(["÷ best peer", "÷ limit", "target", "in rounds", ""]);
        let numbers = 2..header.len() - 3;
        table.set_header(header);
        for case in cases {
            let Some((unit, _)) = self.units.get(&case.name) else { continue };
            let ours = self.of(&case.name, OURS);
            let mut line = vec![case.name.clone(), (*unit).to_owned()];
            line.extend(contestants.iter().map(|who| with_spread(self.of(&case.name, who))));
            line.push(ratio(ours, &self.best_peer(&case.name)));
            line.push(ratio(ours, self.of(&case.name, LIMIT)));
            let verdicts: Vec<_> =
                case.bars.iter().filter_map(|&bar| self.judge(case, bar)).collect();
            if verdicts.is_empty() {
                line.extend(["", "", ""].map(str::to_owned));
                table.add_row(line);
                continue;
            }
            for verdict in verdicts {
                let met = verdict.reached.iter().filter(|&&part| part >= 1.0).count();
                let mut row = std::mem::replace(&mut line, vec![String::new(); numbers.end]);
                row.push(verdict.target);
                row.push(format!("{met} of {}", verdict.reached.len()));
                row.push(if verdict.met { "met" } else { "MISSED" }.to_owned());
                table.add_row(row);
            }
        }
        for column in numbers {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.to_string()
    }

    pub fn json(&self, cases: &[Case]) -> anyhow::Result<String> {
        let lines: Vec<_> = cases
            .iter()
            .map(|case| Line {
                workload: &case.name,
                unit: self.units.get(&case.name).map_or("", |(unit, _)| unit),
                rounds: case.runs.iter().map(|(who, _)| (*who, self.of(&case.name, who))).collect(),
                targets: case.bars.iter().filter_map(|&bar| self.judge(case, bar)).collect(),
            })
            .collect();
        Ok(serde_json::to_string_pretty(&lines)?)
    }
}

fn is_peer(who: &str) -> bool {
    who != OURS && who != LIMIT
}

fn present(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    values.into_iter().filter(|value| !value.is_nan()).collect()
}

/// The median of the rounds' ratios.
fn ratio(ours: &[f64], other: &[f64]) -> String {
    let ratios = present(ours.iter().zip(other).map(|(ours, other)| ours / other));
    if ratios.is_empty() { String::new() } else { format!("{:.2}", median(&ratios)) }
}

/// The median, and how far the rounds lie apart.
fn with_spread(values: &[f64]) -> String {
    let values = present(values.iter().copied());
    if values.is_empty() {
        return String::new();
    }
    let middle = median(&values);
    let least = values.iter().copied().fold(f64::MAX, f64::min);
    let most = values.iter().copied().fold(f64::MIN, f64::max);
    let spread = (most - least) / middle * 100.0;
    let digits = if middle < 10.0 { 2 } else { 0 };
    format!("{middle:.digits$} ±{:.0} %", spread / 2.0)
}
