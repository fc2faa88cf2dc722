//! The metrics registry. It is a value and not a global, so that several servers can run in one process, as in tests.
//! The modules that count locks and requests register those families.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder as _, SharedString,
};
use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use nix::time::ClockId;

/// Buckets for request durations in seconds, from an operation in memory to a long wait.
pub const SECONDS: &[f64] = &[
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0,
];

/// The metric families of this process, and their rendering for Prometheus.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    process: metrics_process::Collector,
    sampled: Mutex<Vec<Sampled>>,
}

/// Copies a value that is kept elsewhere into its metric; called only when the metrics are rendered.
type Sampled = Box<dyn Fn() + Send>;

impl Metrics {
    /// A registry whose histograms have the buckets [`SECONDS`].
    pub fn new() -> Self {
        Self::with_buckets(&[])
    }

    /// A registry in which the named histograms have buckets of their own. They are parameters here, because the
    /// exporter must know them before the first histogram is registered.
    ///
    /// # Panics
    ///
    /// When a list of buckets is empty.
    pub fn with_buckets(buckets: &[(&str, &[f64])]) -> Self {
        // Without default buckets the exporter would create summaries, which cannot be aggregated over processes.
        let mut builder = PrometheusBuilder::new()
            .set_buckets(SECONDS)
            .expect("the list has entries");
        for (name, bounds) in buckets {
            builder = builder
                .set_buckets_for_metric(Matcher::Full((*name).to_owned()), bounds)
                .expect("every histogram has at least one bucket");
        }
        let recorder = builder.build_recorder();
        let metrics = Self {
            handle: recorder.handle(),
            recorder,
            process: metrics_process::Collector::default(),
            sampled: Mutex::default(),
        };
        metrics.describe_process();
        metrics.describe_build();
        metrics
    }

    /// A counter; its name ends with `_total`. Calling it again returns the same one.
    pub fn counter(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Counter {
        self.recorder
            .describe_counter(name.into(), None, help.into());
        self.recorder
            .register_counter(&key(name, labels), &METADATA)
    }

    /// A gauge. Calling it again returns the same one.
    pub fn gauge(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Gauge {
        self.recorder.describe_gauge(name.into(), None, help.into());
        self.recorder.register_gauge(&key(name, labels), &METADATA)
    }

    /// A gauge whose value is read whenever the metrics are rendered.
    pub fn sampled_gauge(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
        read: impl Fn() -> f64 + Send + 'static,
    ) {
        let gauge = self.gauge(name, help, labels);
        self.sample(Box::new(move || gauge.set(read())));
    }

    /// A counter that is kept elsewhere, and read whenever the metrics are rendered; its name ends with `_total`.
    pub fn sampled_counter(
        &self,
        name: &'static str,
        help: &'static str,
        read: impl Fn() -> u64 + Send + 'static,
    ) {
        let counter = self.counter(name, help, &[]);
        self.sample(Box::new(move || counter.absolute(read())));
    }

    /// A histogram. Calling it again returns the same one.
    pub fn histogram(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Histogram {
        self.recorder
            .describe_histogram(name.into(), None, help.into());
        self.recorder
            .register_histogram(&key(name, labels), &METADATA)
    }

    /// Moves the samples of histograms into their buckets. Samples pile up in memory until this or
    /// [`render`](Self::render) is called, so a process that is not scraped must call it from time to time.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    /// Everything in the Prometheus text format 0.0.4.
    pub fn render(&self) -> String {
        metrics::with_local_recorder(&self.recorder, || self.process.collect());
        for sampled in self
            .sampled
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            sampled();
        }
        self.handle.run_upkeep();
        with_cpu_time(&self.handle.render())
    }

    fn sample(&self, sampled: Sampled) {
        self.sampled
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(sampled);
    }

    fn describe_process(&self) {
        metrics::with_local_recorder(&self.recorder, || self.process.describe());
    }

    fn describe_build(&self) {
        let labels = [
            ("version", super::BUILD.version),
            ("revision", super::BUILD.revision),
            ("rustc", super::BUILD.rustc),
        ];
        self.gauge(
            "leasehold_build_info",
            "The build of this process; always 1.",
            &labels,
        )
        .set(1.0);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// Replaces the value of the CPU time, because counters of the `metrics` facade have whole numbers only, and whole seconds
/// hide what a process costs that does little.
fn with_cpu_time(rendered: &str) -> String {
    const CPU_SECONDS: &str = "process_cpu_seconds_total ";
    let Ok(time) = ClockId::CLOCK_PROCESS_CPUTIME_ID.now() else {
        return rendered.to_owned();
    };
    let mut text = String::with_capacity(rendered.len() + 16);
    for line in rendered.split_inclusive('\n') {
        if line.starts_with(CPU_SECONDS) {
            let seconds = Duration::from(time).as_secs_f64();
            text.push_str(&format!("{CPU_SECONDS}{seconds:.6}\n"));
        } else {
            text.push_str(line);
        }
    }
    text
}

/// Required by the `metrics` facade; the exporter ignores it.
static METADATA: Metadata<'static> = Metadata::new("leasehold", Level::INFO, None);

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let label = |(name, value): &(&'static str, &str)| {
        Label::new(*name, SharedString::from((*value).to_owned()))
    };
    Key::from_parts(name, labels.iter().map(label).collect::<Vec<_>>())
}
