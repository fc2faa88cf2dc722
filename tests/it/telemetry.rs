//! The metrics in the Prometheus format.

use std::io::Write as _;
use std::process::{Command, Stdio};

use leasehold::telemetry::Metrics;

fn with_one_of_each() -> Metrics {
    let metrics = Metrics::with_buckets(&[("leasehold_hold_duration_seconds", &[1.0, 60.0])]);
    metrics
        .counter(
            "leasehold_grants_total",
            "Locks granted.",
            &[("mode", "shared")],
        )
        .increment(2);
    metrics
        .gauge("leasehold_waiters", "Claims that wait.", &[])
        .set(3.0);
    metrics.sampled_gauge(
        "leasehold_open_connections",
        "Connections open.",
        &[],
        || 4.0,
    );
    metrics
        .histogram(
            "leasehold_hold_duration_seconds",
            "How long locks were held.",
            &[],
        )
        .record(5.0);
    metrics
        .histogram("leasehold_wait_seconds", "How long claims waited.", &[])
        .record(0.003);
    metrics
}

/// Whole seconds would hide what the service costs when it does little.
#[test]
fn the_cpu_time_has_fractions_of_a_second() {
    let metrics = Metrics::new();
    let text = metrics.render();
    assert!(text.contains("# TYPE process_cpu_seconds_total counter"));
    let mut lines = text.lines();
    let seconds = lines.find_map(|line| line.strip_prefix("process_cpu_seconds_total "));
    let (_, fraction) = seconds.and_then(|text| text.split_once('.')).unwrap();
    assert!(fraction.len() >= 3, "{seconds:?}");
}

#[test]
fn what_was_counted_is_rendered() {
    let text = with_one_of_each().render();
    for line in [
        "# TYPE leasehold_grants_total counter",
        "leasehold_grants_total{mode=\"shared\"} 2",
        "leasehold_waiters 3",
        "leasehold_open_connections 4",
        "leasehold_hold_duration_seconds_bucket{le=\"1\"} 0",
        "leasehold_hold_duration_seconds_bucket{le=\"60\"} 1",
        "leasehold_wait_seconds_bucket{le=\"0.005\"} 1",
    ] {
        assert!(
            text.lines().any(|rendered| rendered == line),
            "{line} is not in\n{text}"
        );
    }
    assert!(text.contains("leasehold_build_info{version=\""), "{text}");
    assert!(text.contains("process_resident_memory_bytes"), "{text}");
}

#[test]
fn two_registries_do_not_know_each_other() {
    let (one, other) = (with_one_of_each(), Metrics::new());
    assert!(one.render().contains("leasehold_waiters"));
    assert!(!other.render().contains("leasehold_waiters"));
}

#[test]
fn promtool_has_nothing_to_complain_about() {
    let child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.expect("promtool comes with Prometheus");
    child
        .stdin
        .take()
        .unwrap()
        .write_all(with_one_of_each().render().as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && complaints.is_empty(),
        "{complaints}"
    );
}
