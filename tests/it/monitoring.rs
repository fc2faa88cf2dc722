//! The rules, the alerts and the dashboard of `monitoring/`: they are valid, they know no metric that does not exist,
//! every alert fires when it should and has a runbook, and a real Prometheus gets data from real processes.

mod counting;
mod prometheus;
mod scraping;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const RECORDING: &str = include_str!("../../monitoring/recording.yaml");
const ALERTS: &str = include_str!("../../monitoring/alerts.yaml");
const ALERT_TESTS: &str = include_str!("../../monitoring/tests/alerts.yaml");
const DASHBOARD: &str = include_str!("../../monitoring/dashboard.json");
const METRICS_PAGE: &str = include_str!("../../docs/reference/metrics.md");
const COMPOSE: &str = include_str!("../../compose.yaml");
const INDEX: &str = include_str!("../../docs/README.md");

/// The manifest for the Prometheus operator, up to the groups of rules.
const MANIFEST: &str = "\
# Generated from recording.yaml and alerts.yaml: UPDATE=1 cargo test --locked --test it -- monitoring::
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: leasehold
  labels:
    app.kubernetes.io/name: leasehold
    app.kubernetes.io/part-of: leasehold
spec:
  groups:
";

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

#[track_caller]
fn promtool(arguments: &[&str]) {
    let found = Command::new("promtool")
        .args(arguments)
        .current_dir(path("monitoring"))
        .output()
        .expect("promtool comes with Prometheus");
    let [stdout, stderr] =
        [&found.stdout, &found.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(found.status.success(), "{stdout}\n{stderr}");
}

/// The values of this key in a file of rules.
fn values<'a>(rules: &'a str, key: &str) -> Vec<&'a str> {
    let lines = rules
        .lines()
        .map(|line| line.trim_start_matches([' ', '-']));
    lines
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
        .collect()
}

/// The panels of the dashboard with their queries.
fn queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let of_panel = |panel: &Value| {
        let title = panel["title"].as_str().unwrap().to_owned();
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        let queries = targets.into_iter().map(|target| target["expr"].clone());
        queries
            .map(|query| (title.clone(), query.as_str().unwrap().to_owned()))
            .collect::<Vec<_>>()
    };
    panels.iter().flat_map(of_panel).collect()
}

#[test]
fn prometheus_accepts_the_rules() {
    promtool(&["check", "rules", "recording.yaml", "alerts.yaml"]);
    promtool(&["check", "config", "--syntax-only", "prometheus.yaml"]);
}

#[test]
fn every_alert_fires_when_it_should_and_only_then() {
    let cases = values(ALERT_TESTS, "name");
    for alert in values(ALERTS, "alert") {
        assert!(cases.contains(&alert), "no case is named {alert}");
    }
    promtool(&["test", "rules", "tests/alerts.yaml"]);
}

#[test]
fn every_alert_has_a_runbook_and_every_runbook_an_alert() {
    let alerts: BTreeSet<_> = values(ALERTS, "alert").into_iter().collect();
    assert!(alerts.len() > 20, "{alerts:?}");
    for key in ["severity", "summary", "description", "runbook_url"] {
        assert_eq!(values(ALERTS, key).len(), alerts.len(), "{key}");
    }
    let pages = fs::read_dir(path("docs/runbooks")).unwrap();
    let pages = pages.map(|page| page.unwrap().file_name().into_string().unwrap());
    let expected: BTreeSet<_> = alerts.iter().map(|alert| format!("{alert}.md")).collect();
    assert_eq!(pages.collect::<BTreeSet<_>>(), expected);
    let linked = values(ALERTS, "runbook_url");
    for alert in alerts {
        let end = format!("/docs/runbooks/{alert}.md");
        assert!(linked.iter().any(|url| url.ends_with(&end)), "{alert}");
        let page = fs::read_to_string(path(&end[1..])).unwrap();
        assert!(page.starts_with(&format!("# {alert}\n")), "{alert}");
        for section in ["Meaning", "Impact", "Diagnosis", "Mitigation"] {
            let heading = format!("\n## {section}\n");
            assert!(page.contains(&heading), "{alert} has no {section}");
        }
        assert!(INDEX.contains(&format!("(runbooks/{alert}.md)")), "{alert}");
    }
}

#[test]
fn the_manifest_of_the_operator_has_the_same_rules() {
    let groups = |rules: &'static str| rules.split_once("groups:\n").unwrap().1;
    let indented = [RECORDING, ALERTS].map(groups).concat();
    let indented = indented.lines().map(|line| match line {
        "" => "\n".to_owned(),
        line => format!("  {line}\n"),
    });
    let made = format!("{MANIFEST}{}", indented.collect::<String>());
    let manifest = path("monitoring/prometheusrule.yaml");
    #[expect(
        clippy::disallowed_methods,
        reason = "a switch for people, not configuration"
    )]
    let is_update = std::env::var_os("UPDATE").is_some();
    if is_update {
        fs::write(manifest, made).unwrap();
        return;
    }
    let committed = fs::read_to_string(manifest).unwrap();
    assert!(
        committed == made,
        "the manifest is stale; run `UPDATE=1 cargo test --locked --test it -- monitoring::` and commit it"
    );
}

#[test]
fn every_metric_in_a_query_is_on_the_page_of_metrics() {
    let queries = queries();
    assert!(queries.len() > 40, "only {} queries", queries.len());
    let of_dashboard = queries.iter().map(|(_, query)| query.as_str());
    let is_in_name = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let words = of_dashboard
        .chain([RECORDING, ALERTS])
        .flat_map(|text| text.split(|letter| !is_in_name(letter)));
    let is_metric = |word: &&str| {
        ["leasehold_", "http_server_", "process_"]
            .iter()
            .any(|start| word.starts_with(start))
    };
    let metrics: BTreeSet<_> = words.filter(is_metric).collect();
    assert!(metrics.len() > 40, "{metrics:?}");
    for metric in metrics {
        let of_histogram = ["_bucket", "_count", "_sum"];
        let family = of_histogram.iter().find_map(|end| metric.strip_suffix(end));
        let is_known = |name: &str| METRICS_PAGE.contains(&format!("| `{name}` |"));
        assert!(
            is_known(metric) || family.is_some_and(is_known),
            "the page has no {metric}"
        );
    }
}

/// A volume whose file does not exist becomes an empty directory.
#[test]
fn compose_finds_the_files_that_it_mounts() {
    let volumes = COMPOSE.lines().map(str::trim_start);
    let files = volumes.filter_map(|line| line.strip_prefix("- ./")?.split_once(':'));
    let files: Vec<_> = files.map(|(file, _)| file).collect();
    assert!(files.len() >= 5, "{files:?}");
    for file in files {
        assert!(path(file).is_file(), "{file}");
    }
}

/// Grafana refuses a provisioned dashboard whose `id` belongs to another, and shows panels with one `id` as one.
#[test]
fn the_dashboard_can_be_provisioned() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    assert!(dashboard["id"].is_null() && dashboard["uid"] == "leasehold");
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert_eq!(variables[0]["type"], "datasource");
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len());
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = &panel["title"];
        assert!(panel["description"].is_string(), "{title}");
        let targets = panel["targets"].as_array().unwrap();
        for source in targets
            .iter()
            .chain([panel])
            .map(|part| &part["datasource"])
        {
            assert_eq!(source["uid"], "${datasource}", "{title}");
        }
    }
}
