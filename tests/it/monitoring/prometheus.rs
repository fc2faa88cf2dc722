//! A Prometheus that a test starts: it scrapes given addresses every second, and evaluates the rules as often.

use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::path;
use crate::support::eventually_within;
use crate::support::redis_server::free_port;

/// How long a start may take on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running Prometheus, which is killed by its pid when it is dropped.
pub(super) struct Prometheus {
    process: Child,
    url: String,
    client: reqwest::Client,
    _data: TempDir,
}

impl Prometheus {
    /// Starts it, and waits until it answers.
    pub(super) async fn start(targets: &[String]) -> Self {
        for _ in 0..3 {
            let mut prometheus = Self::launch(targets);
            let ready = format!("{}/-/ready", prometheus.url);
            let is_ready = eventually_within(START_TIMEOUT, "Prometheus starts", async || {
                // Another process may have taken the port since; then the next one is tried.
                if prometheus.process.try_wait().unwrap().is_some() {
                    return Some(false);
                }
                let answer = prometheus.client.get(&ready).send().await.ok()?;
                answer.status().is_success().then_some(true)
            });
            if is_ready.await {
                return prometheus;
            }
        }
        panic!("Prometheus ends at once on any of three ports");
    }

    fn launch(targets: &[String]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let config = data.path().join("prometheus.yaml");
        std::fs::write(&config, configuration(targets)).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", data.path().display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error")
            .stdin(Stdio::null())
            .spawn()
            .expect("scripts/setup-tests installs Prometheus");
        Self {
            process,
            url: format!("http://{address}"),
            client: reqwest::Client::new(),
            _data: data,
        }
    }

    /// The samples that a query returns now.
    pub(super) async fn query(&self, query: &str) -> Vec<Value> {
        let mut url = reqwest::Url::parse(&self.url).unwrap();
        url.set_path("/api/v1/query");
        url.query_pairs_mut().append_pair("query", query);
        let answer = self.get(url).await;
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().unwrap().clone()
    }

    /// The rules of all groups, with their state.
    pub(super) async fn rules(&self) -> Vec<Value> {
        let mut url = reqwest::Url::parse(&self.url).unwrap();
        url.set_path("/api/v1/rules");
        let answer = self.get(url).await;
        let groups = answer["data"]["groups"].as_array().unwrap().iter();
        groups
            .flat_map(|group| group["rules"].as_array().unwrap().clone())
            .collect()
    }

    async fn get(&self, url: reqwest::Url) -> Value {
        let answer = self.client.get(url).send().await.unwrap();
        answer.json().await.unwrap()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn configuration(targets: &[String]) -> String {
    let mut text =
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files:\n".to_owned();
    for rules in ["monitoring/recording.yaml", "monitoring/alerts.yaml"] {
        writeln!(text, "  - {}", path(rules).display()).unwrap();
    }
    let targets = targets.join(", ");
    write!(
        text,
        "scrape_configs:\n  - job_name: leasehold\n    static_configs: [{{targets: [{targets}]}}]\n"
    )
    .unwrap();
    text
}
