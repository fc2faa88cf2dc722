//! The commands that a Redis executes, by `MONITOR`.

use std::net::SocketAddr;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpStream;

/// A command that Redis has executed.
pub(crate) struct Executed {
    pub(crate) database: u16,
    /// Whether a script called it. Redis reports the script first, and no other command between those of a script.
    pub(crate) is_of_script: bool,
    /// The name, as it was sent, and the arguments.
    pub(crate) words: Vec<Vec<u8>>,
}

/// All commands of a Redis from now on.
pub(crate) struct Monitor {
    lines: Lines<BufReader<TcpStream>>,
    /// Another connection, to put marks into the output.
    marks: TcpStream,
}

impl Monitor {
    pub(crate) async fn start(address: &str) -> Self {
        let address: SocketAddr = address.parse().expect("an address");
        let connect = async || TcpStream::connect(address).await;
        let mut stream = connect().await.expect("it listens");
        stream.write_all(b"MONITOR\r\n").await.expect("it is open");
        let mut lines = BufReader::new(stream).lines();
        let begun = lines.next_line().await.expect("an answer");
        assert_eq!(begun.as_deref(), Some("+OK"));
        let marks = connect().await.expect("it listens");
        Self { lines, marks }
    }

    /// The commands since the last call.
    pub(crate) async fn take(&mut self) -> Vec<Executed> {
        let mark = uuid::Uuid::new_v4().to_string();
        let echo = format!("ECHO {mark}\r\n");
        let marked = self.marks.write_all(echo.as_bytes()).await;
        marked.expect("it is open");
        let mut commands = Vec::new();
        loop {
            let line = self.lines.next_line().await.expect("it reports");
            let line = line.expect("it reports");
            if line.contains(&mark) {
                return commands;
            }
            commands.extend(Executed::read(&line));
        }
    }
}

impl Executed {
    /// Reads `+1700000000.123456 [0 127.0.0.1:40000] "EVALSHA" "…" …`, or with `lua` in place of the address.
    fn read(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once(" [")?;
        let (client, words) = rest.split_once("] ")?;
        let (database, address) = client.split_once(' ')?;
        Some(Self {
            database: database.parse().ok()?,
            is_of_script: address == "lua",
            words: words_of(words),
        })
    }

    /// The name in lower case.
    pub(crate) fn name(&self) -> String {
        String::from_utf8_lossy(&self.words[0]).to_lowercase()
    }
}

/// Reads words in quotes, with the escapes of Redis.
fn words_of(text: &str) -> Vec<Vec<u8>> {
    let (mut words, mut rest) = (Vec::new(), text.bytes());
    while rest.by_ref().any(|letter| letter == b'"') {
        let mut word = Vec::new();
        loop {
            match rest.next().expect("quotes are closed") {
                b'"' => break,
                b'\\' => word.push(match rest.next().expect("an escaped letter") {
                    b'x' => {
                        let digits = [rest.next(), rest.next()].map(|digit| digit.expect("two"));
                        let digits = std::str::from_utf8(&digits).expect("ASCII");
                        u8::from_str_radix(digits, 16).expect("hexadecimal")
                    }
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'a' => 7,
                    b'b' => 8,
                    other => other,
                }),
                letter => word.push(letter),
            }
        }
        words.push(word);
    }
    words
}

#[test]
fn a_line_is_read_with_the_bytes_that_redis_escapes() {
    let line = r#"+1.5 [7 lua] "SET" "a\"b\\\x00" "c\n""#;
    let command = Executed::read(line).expect("a command");
    assert_eq!((command.database, command.is_of_script), (7, true));
    assert_eq!(
        command.words,
        [b"SET".as_slice(), b"a\"b\\\0", b"c\n"].map(<[u8]>::to_vec)
    );
    assert_eq!(command.name(), "set");
}
