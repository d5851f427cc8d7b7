//! Posts profiles to an OpenTelemetry collector on a thread of its own, so that a slow collector does not delay the
//! daemon.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use nearpage_amount::counted;
use nearpage_http::{Endpoint, Posted};
use nearpage_report::rejected_profiles;

/// Limit of the number of waiting messages. The oldest message is dropped for a new one.
const WAITING_MAX: usize = 8;
/// Time limit for posting a message.
const POST_TIME: Duration = Duration::from_secs(10);
/// Time limit for posting the remaining messages when the daemon ends.
const END_TIME: Duration = Duration::from_secs(2);
/// Initial time between retries, which doubles with each failure, and its maximum.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Statuses that OTLP's specification defines as retryable.
const RETRIED: [u16; 4] = [429, 502, 503, 504];

/// The thread that posts messages.
#[derive(Debug)]
pub(super) struct Collector {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    endpoint: Endpoint,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Vec<u8>>,
    is_posting: bool,
    has_ended: bool,
    counts: PostCounts,
    /// Why the latest message was not taken.
    why: String,
    is_told: bool,
}

/// Numbers of messages by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PostCounts {
    /// Messages that the collector took.
    pub sent: u64,
    /// Messages that were lost.
    pub lost: u64,
}

impl Collector {
    pub fn start(endpoint: Endpoint) -> Self {
        let shared = Arc::new(Shared {
            endpoint,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let of_thread = shared.clone();
        thread::spawn(move || of_thread.post_all());
        Self { shared }
    }

    /// Queues a message without waiting.
    pub fn post(&self, message: Vec<u8>) {
        let mut state = self.shared.state();
        if state.waiting.len() == WAITING_MAX {
            state.waiting.pop_front();
            state.counts.lost += 1;
        }
        state.waiting.push_back(message);
        self.shared.changed.notify_all();
    }

    /// Numbers of messages so far, by outcome.
    pub fn counts(&self) -> PostCounts {
        self.shared.state().counts
    }

    /// A message when the first profile is lost; `None` afterwards.
    pub fn trouble(&self) -> Option<String> {
        let mut state = self.shared.state();
        if state.counts.lost == 0 || std::mem::replace(&mut state.is_told, true) {
            return None;
        }
        Some(format!(
            "profiles for {} are being lost: {}",
            self.shared.endpoint,
            state.cause()
        ))
    }

    /// Waits for the remaining messages up to the time limit. Returns a message about lost profiles, if there are any.
    pub fn finish(self) -> Option<String> {
        let mut state = self.shared.state();
        state.has_ended = true;
        self.shared.changed.notify_all();
        let is_busy = |state: &mut State| state.is_posting || !state.waiting.is_empty();
        let waited = self
            .shared
            .changed
            .wait_timeout_while(state, END_TIME, is_busy);
        state = waited.expect("nobody panics with it").0;
        let PostCounts { sent, lost } = state.counts;
        let lost = lost + state.waiting.len() as u64 + u64::from(state.is_posting);
        (lost > 0).then(|| {
            format!(
                "{} of profiles for {} lost, {sent} sent: {}",
                counted(lost, "message"),
                self.shared.endpoint,
                state.cause()
            )
        })
    }
}

impl State {
    fn cause(&self) -> &str {
        match self.why.as_str() {
            "" => "it takes too long to answer",
            why => why,
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }

    fn post_all(&self) {
        let mut pause = RETRY_MIN;
        while let Some(message) = self.next() {
            let posted =
                self.endpoint
                    .post("application/x-protobuf", message.clone().into(), POST_TIME);
            let outcome = judge(posted.map_err(|error| error.to_string()));
            let mut state = self.state();
            state.is_posting = false;
            match outcome {
                Outcome::Taken => {
                    state.counts.sent += 1;
                    pause = RETRY_MIN;
                }
                Outcome::Refused(why) => {
                    state.counts.lost += 1;
                    state.why = why;
                }
                Outcome::Later(why, wanted) => {
                    state.why = why;
                    match state.waiting.len() < WAITING_MAX && !state.has_ended {
                        true => state.waiting.push_front(message),
                        false => state.counts.lost += 1,
                    }
                    let pausing = wanted.unwrap_or(pause).min(RETRY_MAX);
                    pause = (2 * pause).min(RETRY_MAX);
                    let going_on = |state: &mut State| !state.has_ended;
                    let waited = self.changed.wait_timeout_while(state, pausing, going_on);
                    drop(waited.expect("nobody panics with it"));
                }
            }
            self.changed.notify_all();
        }
    }

    /// Waits for the next message; `None` after the end.
    fn next(&self) -> Option<Vec<u8>> {
        let state = self.state();
        let is_idle = |state: &mut State| state.waiting.is_empty() && !state.has_ended;
        let mut state = self
            .changed
            .wait_while(state, is_idle)
            .expect("nobody panics with it");
        let message = state.waiting.pop_front();
        state.is_posting = message.is_some();
        message
    }
}

/// Meaning of a collector's answer.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Taken,
    /// The collector refuses this message.
    Refused(String),
    /// The collector may take the message later, after this time if it gives one.
    Later(String, Option<Duration>),
}

fn judge(posted: Result<Posted, String>) -> Outcome {
    match posted {
        Err(why) => Outcome::Later(why, None),
        Ok(posted) if posted.status == 200 => match rejected_profiles(&posted.body) {
            None => Outcome::Taken,
            Some(why) => Outcome::Refused(why),
        },
        Ok(Posted {
            status,
            retry_after,
            ..
        }) if RETRIED.contains(&status) => {
            Outcome::Later(format!("it answers with status {status}"), retry_after)
        }
        Ok(Posted { status: 404, .. }) => Outcome::Refused(
            "it answers with status 404: it takes no profiles, or not under this path".to_owned(),
        ),
        Ok(Posted { status, .. }) => Outcome::Refused(format!("it answers with status {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_apart_as_the_protocol_has_them() {
        let answered = |status, body: &'static [u8]| {
            judge(Ok(Posted {
                status,
                retry_after: None,
                body: body.into(),
            }))
        };
        assert_eq!(answered(200, b""), Outcome::Taken);
        // A body that is no message rejects nothing.
        assert_eq!(answered(200, b"\xff\xff"), Outcome::Taken);
        let refused = |outcome| matches!(outcome, Outcome::Refused(_));
        // partial_success { rejected_profiles: 2, error_message: "no" }
        assert_eq!(
            answered(200, b"\x0a\x06\x08\x02\x12\x02no"),
            Outcome::Refused("it rejects 2 profiles: no".to_owned())
        );
        for status in [301, 400, 401, 404, 413, 500] {
            assert!(refused(answered(status, b"")), "{status}");
        }
        for status in RETRIED {
            assert!(
                matches!(answered(status, b""), Outcome::Later(..)),
                "{status}"
            );
        }
        assert_eq!(
            judge(Err("refused".to_owned())),
            Outcome::Later("refused".to_owned(), None)
        );
    }

    /// A collector without a listener. The system does not reuse the port at once, so that nothing listens there.
    fn down() -> Collector {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        Collector::start(Endpoint::parse(&url, 4318, "/").expect("an address"))
    }

    #[test]
    fn profiles_lost_by_an_absent_collector_are_counted_and_reported_once() {
        let collector = down();
        for number in 0..2 * WAITING_MAX {
            collector.post(vec![number as u8]);
        }
        let lost = collector.counts().lost;
        assert!(lost >= WAITING_MAX as u64 - 1, "{lost}");
        let line = collector.trouble().expect("a line");
        assert!(line.starts_with("profiles for http://127.0.0.1:"), "{line}");
        assert_eq!(collector.trouble(), None);
        let line = collector.finish().expect("a line");
        assert!(
            line.starts_with("16 messages of profiles for http://"),
            "{line}"
        );
        assert!(line.contains("lost, 0 sent: "), "{line}");
    }

    #[test]
    fn no_trouble_is_reported_without_a_post() {
        assert_eq!(down().finish(), None);
    }
}
