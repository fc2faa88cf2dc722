//! Steps the clock of a running Redis, by a preloaded library (`support/clock_shim.c`).

use std::io::{Seek as _, Write as _};
use std::process::Command;
use std::sync::Mutex;

use tempfile::TempDir;

/// The library, and the file with the offset of the clock.
pub(super) struct Clock {
    directory: TempDir,
    offset_us: Mutex<i64>,
}

impl Clock {
    /// Builds the library. The offset is 0 at first.
    pub(super) fn build() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let clock = Self {
            directory,
            offset_us: Mutex::new(0),
        };
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/clock_shim.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o", &clock.library(), source])
            .output()
            .expect("there is a C compiler, for the faults of the clock");
        assert!(
            built.status.success(),
            "cc: {}",
            String::from_utf8_lossy(&built.stderr)
        );
        clock.step(0);
        clock
    }

    /// The environment to start a Redis with.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("LD_PRELOAD", self.library()),
            ("CLOCK_OFFSET_FILE", self.file()),
        ]
    }

    /// Steps the clock.
    pub(super) fn step(&self, by_us: i64) {
        let mut offset = self.offset_us.lock().expect("whole");
        *offset += by_us;
        // Redis has mapped the file: overwrite it in a single write, and never truncate it.
        let file = std::fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.file());
        let mut file = file.expect("a file of our own");
        file.rewind().expect("it can be written");
        file.write_all(&offset.to_ne_bytes())
            .expect("it can be written");
    }

    fn library(&self) -> String {
        self.path("clock.so")
    }

    fn file(&self) -> String {
        self.path("offset")
    }

    fn path(&self, name: &str) -> String {
        let path = self.directory.path().join(name);
        path.to_str().expect("a path in UTF-8").to_owned()
    }
}
