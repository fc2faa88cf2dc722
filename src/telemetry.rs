//! stub
use metrics::*;
/// x
#[derive(Debug, Default)]
pub struct Metrics;
impl Metrics {
    /// x
    pub fn counter(
        &self,
        _: &'static str,
        _: &'static str,
        _: &[(&'static str, &'static str)],
    ) -> Counter {
        Counter::noop()
    }
    /// x
    pub fn gauge(
        &self,
        _: &'static str,
        _: &'static str,
        _: &[(&'static str, &'static str)],
    ) -> Gauge {
        Gauge::noop()
    }
    /// x
    pub fn histogram(
        &self,
        _: &'static str,
        _: &'static str,
        _: &[f64],
        _: &[(&'static str, &'static str)],
    ) -> Histogram {
        Histogram::noop()
    }
}
