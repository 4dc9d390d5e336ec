//! The closing table.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "printing is what it is for")]

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};

use crate::measure::{Series, median, ratio};
use crate::workload::{Target, Workload};

/// In how many of all rounds a target has to hold.
const ROUNDS_MET: f64 = 0.8;

pub fn progress(round: usize, rounds: usize) {
    match round {
        0 => eprintln!("warmed up"),
        _ => eprintln!("round {round} of {rounds}"),
    }
}

pub fn table(workloads: &[Workload], series: &[Series]) {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header(["workload", "median", "unit", "spread", "target", "reached", ""]);
    for (workload, readings) in workloads.iter().zip(series) {
        let (target, reached, met) = verdict(workload.target, readings, series);
        table.add_row([
            workload.name.to_owned(),
            grouped(readings.median()),
            readings.unit.to_owned(),
            format!("{:.0} %", readings.spread() * 100.0),
            target,
            reached,
            met,
        ]);
    }
    for column in [1, 3] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    println!("{table}");
}

fn verdict(target: Option<Target>, ours: &Series, all: &[Series]) -> (String, String, String) {
    let (text, values, bound, at_least) = match target {
        None => return Default::default(),
        Some(Target::PerSecond(least)) => {
            (format!("≥ {}", grouped(least)), ours.rounds.clone(), least, true)
        }
        Some(Target::AtMost(most)) => (format!("≤ {most}"), ours.rounds.clone(), most, false),
        Some(Target::NotBelow(part, other)) => {
            let others = all.iter().find(|series| series.name == other);
            let ratios = others.map(|other| ratio(ours, other)).unwrap_or_default();
            (format!("≥ {part:.2} × {other}"), ratios, part, true)
        }
    };
    let met = values.iter().filter(|&&v| if at_least { v >= bound } else { v <= bound }).count();
    #[expect(clippy::cast_precision_loss, reason = "a handful of rounds")]
    let enough = met as f64 >= values.len() as f64 * ROUNDS_MET;
    let value = median(&values);
    let reached = if bound < 10.0 { format!("{value:.2}") } else { grouped(value) };
    let verdict = if enough { "met" } else { "MISSED" };
    (text, reached, format!("{verdict} in {met} of {}", values.len()))
}

/// A number with its thousands apart.
fn grouped(value: f64) -> String {
    if value < 10.0 {
        return format!("{value:.2}");
    }
    if value < 1_000.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
