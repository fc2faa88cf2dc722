//! What was found: one line of the table each, and the same as JSON and as Markdown.

use std::fmt::Write as _;

use serde_json::{Value, json};

/// What a figure has to be.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(least) => format!("≥ {least}"),
            Self::AtMost(most) => format!("≤ {most}"),
        }
    }

    pub(crate) fn value(self) -> f64 {
        match self {
            Self::AtLeast(value) | Self::AtMost(value) => value,
        }
    }
}

/// One figure with all of its samples, one for each round.
pub(crate) struct Finding {
    pub(crate) experiment: &'static str,
    pub(crate) figure: String,
    pub(crate) unit: &'static str,
    pub(crate) samples: Vec<f64>,
    pub(crate) target: Option<Target>,
}

impl Finding {
    pub(crate) fn new(
        experiment: &'static str,
        figure: impl Into<String>,
        unit: &'static str,
        samples: Vec<f64>,
    ) -> Self {
        Self {
            experiment,
            figure: figure.into(),
            unit,
            samples,
            target: None,
        }
    }

    pub(crate) fn at_least(mut self, least: f64) -> Self {
        self.target = Some(Target::AtLeast(least));
        self
    }

    pub(crate) fn at_most(mut self, most: f64) -> Self {
        self.target = Some(Target::AtMost(most));
        self
    }

    pub(crate) fn median(&self) -> f64 {
        median(&self.samples)
    }

    pub(crate) fn least(&self) -> f64 {
        self.samples.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub(crate) fn most(&self) -> f64 {
        self.samples
            .iter()
            .copied()
            .fold(f64::NEG_INFINITY, f64::max)
    }

    fn cells(&self) -> [String; 6] {
        let spread = format!("{} – {}", short(self.least()), short(self.most()));
        let median = format!("{} {}", short(self.median()), self.unit)
            .trim()
            .to_owned();
        let (target, is_met) = match self.target {
            None => (String::new(), ""),
            Some(target) if target.is_met(self.median()) => (target.text(), "yes"),
            Some(target) => (target.text(), "no"),
        };
        [
            self.experiment.to_owned(),
            self.figure.clone(),
            median,
            spread,
            target,
            is_met.to_owned(),
        ]
    }

    fn to_json(&self) -> Value {
        json!({
            "experiment": self.experiment, "figure": self.figure, "unit": self.unit,
            "median": self.median(), "min": self.least(), "max": self.most(), "samples": self.samples,
            "target": self.target.map(Target::text),
            "is_met": self.target.map(|target| target.is_met(self.median())),
        })
    }
}

const HEADINGS: [&str; 6] = [
    "experiment",
    "figure",
    "median",
    "min – max",
    "target",
    "met",
];

/// For a terminal.
pub(crate) fn table(findings: &[Finding]) -> String {
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    rows.extend(findings.iter().map(Finding::cells));
    let widths: [usize; 6] = std::array::from_fn(|column| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    });
    let mut text = String::new();
    for row in rows {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end()).unwrap();
    }
    text
}

/// For the documentation.
pub(crate) fn markdown<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> String {
    let mut text = format!("| {} |\n|---|---|---|---|---|---|\n", HEADINGS.join(" | "));
    for finding in findings {
        writeln!(text, "| {} |", finding.cells().join(" | ")).unwrap();
    }
    text
}

pub(crate) fn to_json(machine: &Value, findings: &[Finding]) -> Value {
    let findings: Vec<_> = findings.iter().map(Finding::to_json).collect();
    json!({ "machine": machine, "findings": findings })
}

pub(crate) fn median(samples: &[f64]) -> f64 {
    let mut samples = samples.to_vec();
    samples.sort_by(f64::total_cmp);
    match samples.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => samples[count / 2],
        count => (samples[count / 2 - 1] + samples[count / 2]) / 2.0,
    }
}

/// What so many of a hundred do not exceed.
pub(crate) fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100]
}

/// Three digits that matter.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
