//! Terraform itself locks its state with the service; the state is kept by a small server of the test.
//!
//! No package of Debian has Terraform. Where there is none, these tests say so and test nothing; `api::terraform` has the
//! requests that Terraform was recorded to send.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use serde_json::Value;
use tempfile::TempDir;

use crate::process::Serving;
use crate::support::eventually;

/// A run of this configuration lasts for as long as the file `stay` exists.
const MAIN: &str = r#"
terraform {
  backend "http" {}
}
resource "terraform_data" "job" {
  triggers_replace = timestamp()
  provisioner "local-exec" {
    command = "while [ -e stay ]; do sleep 0.05; done"
  }
}
"#;

type Stored = Arc<Mutex<Option<Bytes>>>;

/// Serves one state, and returns its URL.
async fn state_server() -> String {
    let read = async |State(stored): State<Stored>| {
        let stored = stored.lock().unwrap().clone();
        stored.ok_or(StatusCode::NOT_FOUND)
    };
    let write = async |State(stored): State<Stored>, body: Bytes| {
        *stored.lock().unwrap() = Some(body);
    };
    let router = Router::new()
        .route("/state", get(read).post(write))
        .with_state(Stored::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/state", listener.local_addr().unwrap());
    #[expect(
        clippy::disallowed_methods,
        reason = "a server of a test needs no timeouts"
    )]
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

/// A machine on which Terraform runs, with its own copy of the configuration.
struct Machine {
    terraform: PathBuf,
    directory: TempDir,
    variables: Vec<(&'static str, String)>,
}

impl Machine {
    /// None, and a line that says so, if there is no Terraform here.
    async fn set_up(state: &str, lock: &str) -> Option<Self> {
        let found = Command::new("sh")
            .args(["-c", "command -v terraform"])
            .output()
            .unwrap();
        let path = String::from_utf8(found.stdout).unwrap();
        if path.trim().is_empty() {
            println!("there is no terraform in PATH: not tested with Terraform itself");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("main.tf"), MAIN).unwrap();
        fs::write(directory.path().join("terraform.rc"), "").unwrap();
        let settings = directory.path().join("terraform.rc").display().to_string();
        let machine = Self {
            terraform: path.trim().into(),
            directory,
            variables: vec![
                ("TF_HTTP_ADDRESS", state.to_owned()),
                ("TF_HTTP_LOCK_ADDRESS", lock.to_owned()),
                ("TF_HTTP_UNLOCK_ADDRESS", lock.to_owned()),
                ("TF_CLI_CONFIG_FILE", settings),
                ("TF_IN_AUTOMATION", "1".to_owned()),
                ("CHECKPOINT_DISABLE", "1".to_owned()),
                ("NO_PROXY", "*".to_owned()),
            ],
        };
        succeeded(&machine.run(&["init"]).await);
        Some(machine)
    }

    fn start(&self, arguments: &[&str]) -> Child {
        Command::new(&self.terraform)
            .args(arguments)
            .arg("-no-color")
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    async fn run(&self, arguments: &[&str]) -> Output {
        ended(self.start(arguments)).await
    }

    /// Starts to apply; it stays in that until `finish`.
    fn apply(&self) -> Child {
        fs::write(self.directory.path().join("stay"), "").unwrap();
        self.start(&["apply", "-auto-approve", "-input=false"])
    }

    fn finish(&self) {
        let _ = fs::remove_file(self.directory.path().join("stay"));
    }
}

/// The output of a process when it has ended; other tasks go on meanwhile.
async fn ended(child: Child) -> Output {
    let output = tokio::task::spawn_blocking(|| child.wait_with_output());
    output.await.unwrap().unwrap()
}

/// What was printed, on one line: Terraform breaks long ones.
fn printed(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", printed(output));
}

async fn lock(serving: &Serving) -> Value {
    let url = format!("{}/locks/prod/network", serving.url);
    reqwest::get(url).await.unwrap().json().await.unwrap()
}

/// Who holds the lock, once somebody does.
async fn owner(serving: &Serving) -> String {
    eventually("a run holds the lock", async || {
        let owner = lock(serving).await["holders"][0]["owner"].clone();
        owner.as_str().map(str::to_owned)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_applies_at_once_one_is_refused_with_the_name_of_the_other() {
    let (serving, state) = (Serving::start(&[]), state_server().await);
    let address = format!("{}/terraform/prod/network", serving.url);
    let Some(one) = Machine::set_up(&state, &address).await else {
        return;
    };
    let two = Machine::set_up(&state, &address).await.unwrap();
    let applying = one.apply();
    let owner = owner(&serving).await;
    two.finish();
    let refused = two.run(&["apply", "-auto-approve", "-input=false"]).await;
    assert_eq!(refused.status.code(), Some(1));
    let holder = format!("held by \"{owner}\" for 60 min more");
    assert!(printed(&refused).contains(&holder), "{}", printed(&refused));
    one.finish();
    succeeded(&ended(applying).await);
    assert_eq!(lock(&serving).await["state"], "free");
    succeeded(&two.run(&["apply", "-auto-approve", "-input=false"]).await);
    assert_eq!(lock(&serving).await["state"], "free");
}

#[tokio::test(flavor = "multi_thread")]
async fn terraform_prints_nothing_of_a_holder_that_controls_a_terminal() {
    let (serving, state) = (Serving::start(&[]), state_server().await);
    let address = format!("{}/terraform/prod/network", serving.url);
    let Some(machine) = Machine::set_up(&state, &address).await else {
        return;
    };
    let info = r#"{"ID":"6443f9f5-54f0-4904-afdb-b10331b53417","Who":"eve\u001b[2J\u009b31m\u202e","Info":"\u007f"}"#;
    let locked = reqwest::Client::new().post(&address).body(info).send();
    assert_eq!(locked.await.unwrap().status(), 200);
    machine.finish();
    let refused = machine
        .run(&["apply", "-auto-approve", "-input=false"])
        .await;
    assert_eq!(refused.status.code(), Some(1));
    let printed = printed(&refused);
    assert!(
        printed.contains("eve\u{fffd}[2J\u{fffd}31m\u{fffd}"),
        "{printed}"
    );
    let hurts = |letter: char| letter.is_control() || letter == '\u{202e}';
    assert_eq!(printed.find(hurts), None, "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_apply_is_refused_with_the_name_of_a_holder_that_is_no_terraform() {
    let (serving, state) = (Serving::start(&[]), state_server().await);
    let address = format!("{}/terraform/prod/network", serving.url);
    let Some(machine) = Machine::set_up(&state, &address).await else {
        return;
    };
    let url = format!("{}/locks/prod/network?owner=backup", serving.url);
    let held = reqwest::Client::new().post(url).send().await.unwrap();
    assert_eq!(held.status(), 201);
    machine.finish();
    let refused = machine
        .run(&["apply", "-auto-approve", "-input=false"])
        .await;
    assert_eq!(refused.status.code(), Some(1));
    let printed = printed(&refused);
    assert!(printed.contains("held by \"backup\" for"), "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_of_a_run_that_was_killed_can_be_forced_open() {
    let (serving, state) = (Serving::start(&[]), state_server().await);
    let address = format!("{}/terraform/prod/network?ttl=10m", serving.url);
    let Some(machine) = Machine::set_up(&state, &address).await else {
        return;
    };
    let mut applying = machine.apply();
    owner(&serving).await;
    let id = lock(&serving).await["holders"][0]["metadata"]["ID"].clone();
    applying.kill().unwrap();
    machine.finish();
    ended(applying).await;
    let forced = ["force-unlock", "-force", id.as_str().unwrap()];
    succeeded(&machine.run(&forced).await);
    assert_eq!(lock(&serving).await["state"], "free");
    succeeded(
        &machine
            .run(&["apply", "-auto-approve", "-input=false"])
            .await,
    );
}
