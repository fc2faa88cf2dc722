//! What becomes of lines whose output is full or fails.

use super::*;

/// An output that takes some bytes, is full once, and has room again.
#[derive(Clone)]
struct FullOnce {
    room: usize,
    taken: Arc<Mutex<Vec<u8>>>,
}

impl Write for FullOnce {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.room == 0 {
            self.room = usize::MAX;
            return Err(io::ErrorKind::StorageFull.into());
        }
        let some = bytes.len().min(self.room);
        self.room -= some;
        self.taken.lock().unwrap().extend_from_slice(&bytes[..some]);
        Ok(some)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An output that never takes anything.
struct AlwaysFull;

impl Write for AlwaysFull {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log of one thread, as text.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_audit_stream_that_fails_is_told_to_the_log_once() {
    let log = Lines::default();
    let lines = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || lines.clone())
        .finish();
    let queue = LogQueue::new(1024);
    tracing::subscriber::with_default(subscriber, || {
        let mut state = WriteState::default();
        for _ in 0..2 {
            let batch = (&mut b"line\n".to_vec(), 1);
            queue.write_batch(LineKind::Audit, &mut AlwaysFull, batch, &mut state);
        }
    });
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_eq!(
        log.matches("audit lines cannot be written").count(),
        1,
        "{log}"
    );
    assert_eq!(queue.dropped.load(Ordering::Relaxed), 2);
}

#[test]
fn a_line_that_was_cut_damages_no_other() {
    let taken = Arc::default();
    let output = FullOnce {
        room: 10,
        taken: Arc::clone(&taken),
    };
    let writer = LogWriter::start(LineKind::Audit, output, 1024).unwrap();
    let mut lines = writer.clone();
    lines.write_all(b"first\n").unwrap();
    writer.flush(Duration::from_secs(20));
    lines.write_all(b"second\n").unwrap();
    writer.flush(Duration::from_secs(20));
    assert_eq!(writer.dropped(), 1);
    lines.write_all(b"third\n").unwrap();
    writer.flush(Duration::from_secs(20));
    let taken = String::from_utf8(taken.lock().unwrap().clone()).unwrap();
    assert_eq!(taken, "first\nseco\nthird\n");
    assert_eq!(writer.dropped(), 1);
}
