//! Unit tests of what Sentinels answer.

use super::*;

fn answers(known: &[(&str, usize)]) -> HashMap<String, SentinelAnswer> {
    let answers = known.iter().map(|(id, others)| {
        let answer = SentinelAnswer {
            id: (*id).to_owned(),
            epoch: 0,
            primary: (String::new(), 0),
            others: vec![(String::new(), 0); *others],
            quorum: 1,
        };
        ((*id).to_owned(), answer)
    });
    answers.collect()
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_before_the_last_failover_is_not_believed() {
    let address = SentinelAddress {
        sentinels: Vec::new(),
        primary: String::new(),
        database: 0,
        is_encrypted: false,
    };
    let sentinels = Sentinels::new(&address, RedisConnectionInfo::default());
    assert!(sentinels.is_latest(3, false));
    assert!(!sentinels.is_latest(2, false));
    assert!(sentinels.is_latest(3, false));
    tokio::time::advance(EPOCH_KNOWN_FOR).await;
    assert!(sentinels.is_latest(1, false), "they were set up anew");
    assert!(
        sentinels.is_latest(0, true),
        "none of them knows a later one"
    );
}

#[test]
fn of_primaries_with_the_same_epoch_the_one_that_most_sentinels_name_counts() {
    let named = |ports: &[(u64, u16)]| {
        let answers = ports.iter().map(|(epoch, port)| SentinelAnswer {
            id: String::new(),
            epoch: *epoch,
            primary: (String::new(), *port),
            others: Vec::new(),
            quorum: 1,
        });
        elected(answers).map(|(_, port)| port)
    };
    assert_eq!(named(&[(0, 1), (0, 2), (0, 1)]), Some(1));
    assert_eq!(named(&[(0, 2), (0, 1), (0, 1)]), Some(1));
    assert_eq!(named(&[(0, 1), (0, 2)]), None);
    assert_eq!(
        named(&[(0, 1), (0, 1), (1, 2)]),
        Some(2),
        "a later failover"
    );
    assert_eq!(named(&[]), None);
}

#[test]
fn more_than_half_of_the_sentinels_have_to_answer() {
    assert!(is_majority(&answers(&[("a", 0)])));
    assert!(!is_majority(&answers(&[("a", 2)])));
    assert!(is_majority(&answers(&[("a", 2), ("b", 2)])));
    assert!(
        !is_majority(&answers(&[("a", 3), ("b", 2)])),
        "the largest number counts"
    );
    assert!(!is_majority(&answers(&[])));
}

#[test]
fn a_sentinel_that_has_met_no_other_yet_is_not_all_of_them() {
    let mut forgetful = answers(&[("a", 0)]);
    forgetful.get_mut("a").expect("it is there").quorum = 2;
    assert!(!is_majority(&forgetful));
    forgetful.extend(answers(&[("b", 1)]));
    assert!(is_majority(&forgetful));
}
