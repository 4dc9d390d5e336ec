//! The readings of all rounds, the verdicts, the table and the JSON.

use std::collections::BTreeMap;

use alkstore_bench::measure::{Reading, median};
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::cases::{Bar, Case, Who};

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

const fn name(who: Who) -> &'static str {
    match who {
        Who::Ours => "alkstore",
        Who::Peer => "honker",
        Who::Limit => "limit",
    }
}

impl Readings {
    pub fn add(&mut self, case: &str, who: Who, reading: Reading) {
        self.values.entry((case.to_owned(), name(who))).or_default().push(reading.value());
        let unit = (reading.unit(), reading.is_better_when_more());
        self.units.insert(case.to_owned(), unit);
    }

    fn of(&self, case: &str, who: Who) -> &[f64] {
        self.values.get(&(case.to_owned(), name(who))).map_or(&[], Vec::as_slice)
    }

    fn judge(&self, case: &Case, bar: Bar) -> Option<Verdict> {
        let more = self.units.get(&case.name)?.1;
        let (ours, limits) = (self.of(&case.name, Who::Ours), self.of(&case.name, Who::Limit));
        let round = |other: &[f64], factor: f64| -> Vec<f64> {
            other.iter().map(|other| other * factor).collect()
        };
        let (target, asked) = match bar {
            Bar::Peer(factor) => {
                let asked = self.of(&case.name, Who::Peer).iter().enumerate().map(|(n, peer)| {
                    let limit = limits.get(n).copied();
                    match (more, limit) {
                        (true, Some(limit)) => (peer * factor).min(limit * OF_LIMIT),
                        (false, Some(limit)) => (peer * factor).max(limit / OF_LIMIT),
                        (_, None) => peer * factor,
                    }
                });
                (format!("{} {factor} × peer", sign(more)), asked.collect())
            }
            Bar::PeerOf(other) => {
                (format!("{} peer: {other}", sign(more)), round(self.of(other, Who::Peer), 1.0))
            }
            Bar::OursOf(factor, other) => (
                format!("{} {factor:.2} × ours: {other}", sign(more)),
                round(self.of(other, Who::Ours), factor),
            ),
            Bar::AtMost(most) => (format!("{} {most:.0}", sign(more)), vec![most; ours.len()]),
            Bar::Limit(factor) => {
                (format!("{} {factor} × limit", sign(more)), round(limits, factor))
            }
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

    /// The median of the rounds' ratios.
    fn ratio(&self, case: &str, other: Who) -> String {
        let ours = self.of(case, Who::Ours);
        let ratios: Vec<f64> =
            ours.iter().zip(self.of(case, other)).map(|(ours, other)| ours / other).collect();
        if ratios.is_empty() { String::new() } else { format!("{:.2}", median(&ratios)) }
    }

    pub fn table(&self, cases: &[Case]) -> String {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN);
        table.set_header([
            "workload",
            "unit",
            "alkstore",
            "honker",
            "limit",
            "÷ honker",
            "÷ limit",
            "target",
            "in rounds",
            "",
        ]);
        for case in cases {
            let Some((unit, _)) = self.units.get(&case.name) else { continue };
            let value = |who| with_spread(self.of(&case.name, who));
            let mut line = vec![
                case.name.clone(),
                (*unit).to_owned(),
                value(Who::Ours),
                value(Who::Peer),
                value(Who::Limit),
                self.ratio(&case.name, Who::Peer),
                self.ratio(&case.name, Who::Limit),
            ];
            let verdicts: Vec<_> =
                case.bars.iter().filter_map(|&bar| self.judge(case, bar)).collect();
            if verdicts.is_empty() {
                line.extend(["", "", ""].map(str::to_owned));
                table.add_row(line);
                continue;
            }
            for verdict in verdicts {
                let met = verdict.reached.iter().filter(|&&part| part >= 1.0).count();
                let mut row = std::mem::replace(&mut line, vec![String::new(); 7]);
                row.push(verdict.target);
                row.push(format!("{met} of {}", verdict.reached.len()));
                row.push(if verdict.met { "met" } else { "MISSED" }.to_owned());
                table.add_row(row);
            }
        }
        for column in 2..7 {
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
                rounds: case
                    .runs
                    .iter()
                    .map(|(who, _)| (name(*who), self.of(&case.name, *who)))
                    .collect(),
                targets: case.bars.iter().filter_map(|&bar| self.judge(case, bar)).collect(),
            })
            .collect();
        Ok(serde_json::to_string_pretty(&lines)?)
    }
}

fn sign(more: bool) -> char {
    if more { '≥' } else { '≤' }
}

/// The median, and how far the rounds lie apart.
fn with_spread(values: &[f64]) -> String {
    if values.is_empty() {
        return String::new();
    }
    let middle = median(values);
    let least = values.iter().copied().fold(f64::MAX, f64::min);
    let most = values.iter().copied().fold(f64::MIN, f64::max);
    let spread = (most - least) / middle * 100.0;
    let digits = if middle < 10.0 { 2 } else { 0 };
    format!("{middle:.digits$} ±{:.0} %", spread / 2.0)
}
