//! Appends the sampler's output to the recording's log.

use std::io;

use nearpage_recording::{Access, AccessBatch, Event, LogWriter, UnsampledPrograms};
use nearpage_sampler::Sink;

use crate::Reporter;
use crate::error::Error;

/// Appends to a log. After a failure, such as a full disk, the command must still run to its end: the sink keeps the
/// first failure and stops writing.
pub(super) struct LogSink<'a> {
    log: LogWriter,
    batch: AccessBatch,
    unsampled: UnsampledPrograms,
    failure: Option<nearpage_recording::Error>,
    say: Reporter<'a>,
}

impl<'a> LogSink<'a> {
    /// `say` gets a failure when it happens.
    pub(super) fn new(log: LogWriter, say: Reporter<'a>) -> Self {
        Self {
            log,
            batch: AccessBatch::default(),
            unsampled: UnsampledPrograms::default(),
            failure: None,
            say,
        }
    }

    /// The unfinished log, and the programs that the kernel refused to sample.
    ///
    /// # Errors
    /// Writing failed.
    pub(super) fn into_log(self) -> Result<(LogWriter, UnsampledPrograms), Error> {
        match self.failure {
            None => Ok((self.log, self.unsampled)),
            Some(failure) => Err(Error::Incomplete(failure)),
        }
    }

    fn unless_failed(
        &mut self,
        write: impl FnOnce(&mut LogWriter) -> Result<(), nearpage_recording::Error>,
    ) {
        if self.failure.is_none()
            && let Err(failure) = write(&mut self.log)
        {
            (self.say)(&format!(
                "recording stops here, what is observed goes on: {failure}"
            ));
            self.failure = Some(failure);
        }
    }
}

impl Sink for LogSink<'_> {
    fn accesses(&mut self, accesses: &[Access]) -> io::Result<()> {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        batch.extend(accesses);
        self.unless_failed(|log| log.accesses(&batch));
        self.batch = batch;
        Ok(())
    }

    fn events(&mut self, events: &[Event]) -> io::Result<()> {
        events.iter().for_each(|event| self.unsampled.event(event));
        self.unless_failed(|log| log.events(events));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::PathBuf;
    use std::time::SystemTime;

    use nearpage_recording::{Metadata, Source};

    use super::*;

    #[test]
    fn the_first_failure_is_reported_once_and_sampling_continues() {
        let folder = tempfile::tempdir().unwrap();
        let machine = nearpage_machine::preset("opteron-4").unwrap();
        let metadata = Metadata::begun(Source::Clock, SystemTime::now(), machine.node_ids());
        let log = LogWriter::create(&folder.path().join("r"), metadata, &machine).unwrap();
        let lines = RefCell::new(Vec::new());
        let say = |line: &str| lines.borrow_mut().push(line.to_owned());
        let mut sink = LogSink::new(log, &say);
        sink.events(&[]).unwrap();
        assert!(lines.borrow().is_empty());

        let full = |_: &mut LogWriter| {
            Err(nearpage_recording::Error::SamplesOnly(PathBuf::from(
                "no space",
            )))
        };
        sink.unless_failed(full);
        sink.unless_failed(|_| panic!("nothing is written after a failure"));
        sink.accesses(&[]).unwrap();
        let error = sink.into_log().map(drop).unwrap_err();
        assert_eq!(error.to_string(), "the recording is incomplete");
        let lines = lines.into_inner();
        assert_eq!(lines.len(), 1);
        assert!(
            lines[0].starts_with("recording stops here, what is observed goes on: no space"),
            "{lines:?}"
        );
    }
}
