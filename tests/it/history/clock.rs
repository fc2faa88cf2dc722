//! Steps the clock of a running Redis, by a preloaded library (`support/clock_shim.c`).

use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tempfile::TempDir;

use crate::support::redis_server::preloaded;

/// The library, and the file with the offset of the clock.
pub(super) struct Clock {
    directory: TempDir,
    library: PathBuf,
    offset_us: Mutex<i64>,
}

impl Clock {
    /// Builds the library. The offset is 0 at first.
    pub(super) fn build() -> Self {
        let clock = Self {
            directory: tempfile::tempdir().expect("a temporary directory"),
            library: preloaded("clock_shim"),
            offset_us: Mutex::new(0),
        };
        clock.step(0);
        clock
    }

    /// The environment to start a Redis with.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("LD_PRELOAD", text(&self.library)),
            ("CLOCK_OFFSET_FILE", text(&self.file())),
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

    fn file(&self) -> PathBuf {
        self.directory.path().join("offset")
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}
