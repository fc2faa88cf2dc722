//! How many SETTINGS frames are among the bytes that an HTTP/2 client sends. What they cost is decided in `activity`; what
//! they mean is h2's matter.

/// The length of what precedes the frames of a connection (RFC 9113, section 3.4).
const PREFACE_LEN: usize = 24;
/// The length of the head of a frame: the length of its payload (3 bytes), its kind, its flags, its stream (section 4.1).
const HEAD_LEN: usize = 9;
const SETTINGS: u8 = 4;
const ACK: u8 = 1;

/// Follows the frames of one connection.
#[derive(Debug)]
pub(super) struct SettingsFrames {
    /// How many bytes come before the head of the next frame.
    skipped: usize,
    head: [u8; HEAD_LEN],
    head_len: usize,
}

impl SettingsFrames {
    /// At the beginning of a connection.
    pub(super) fn new() -> Self {
        Self {
            skipped: PREFACE_LEN,
            head: [0; HEAD_LEN],
            head_len: 0,
        }
    }

    /// Counts the frames whose heads end in the next bytes and that change settings: those that acknowledge do not.
    pub(super) fn count(&mut self, mut bytes: &[u8]) -> usize {
        let mut count = 0;
        loop {
            let skipped = self.skipped.min(bytes.len());
            self.skipped -= skipped;
            bytes = &bytes[skipped..];
            let taken = (HEAD_LEN - self.head_len).min(bytes.len());
            if taken == 0 {
                return count;
            }
            self.head[self.head_len..][..taken].copy_from_slice(&bytes[..taken]);
            self.head_len += taken;
            bytes = &bytes[taken..];
            if self.head_len < HEAD_LEN {
                return count;
            }
            let [a, b, c, kind, flags, ..] = self.head;
            count += usize::from(kind == SETTINGS && flags & ACK == 0);
            self.skipped = u32::from_be_bytes([0, a, b, c]) as usize;
            self.head_len = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let settings = [0, 0, 6, SETTINGS, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0];
        let acknowledged = [0, 0, 0, SETTINGS, ACK, 0, 0, 0, 0];
        // A payload that looks like a frame.
        let data = [&[0, 0, 15, 0, 0, 0, 0, 0, 1], settings.as_slice()].concat();
        for frame in [&settings[..], &data, &acknowledged, &settings, &data] {
            sent.extend(frame);
        }
        for piece_len in [1, 2, 5, 8, 9, 10, 24, 33, sent.len()] {
            let mut frames = SettingsFrames::new();
            let pieces = sent.chunks(piece_len);
            let count: usize = pieces.map(|piece| frames.count(piece)).sum();
            assert_eq!(count, 2, "in pieces of {piece_len}");
        }
    }
}
