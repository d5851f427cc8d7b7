//! A process that ends after it was found and before it is observed: a `/proc` made for the test still has it, the
//! kernel does not.

use std::fs;
use std::io;
use std::process::Command;

use nearpage_recording::{Access, Event};
use nearpage_sampler::{Calibration, Error, Options, RequestedSource, Sampler, Sink, Target};

struct Nothing;

impl Sink for Nothing {
    fn accesses(&mut self, _: &[Access]) -> io::Result<()> {
        Ok(())
    }

    fn events(&mut self, _: &[Event]) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_process_that_ends_meanwhile_is_said_to_have() {
    let mut ended = Command::new("true").spawn().unwrap();
    let pid = ended.id();
    ended.wait().unwrap();
    let root = tempfile::tempdir().unwrap();
    let process = root.path().join(pid.to_string());
    fs::create_dir_all(process.join("task").join(pid.to_string())).unwrap();
    let stat = format!("{pid} (short) R 1 {pid} {pid} 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 3");
    fs::write(process.join("stat"), stat).unwrap();
    fs::write(process.join("status"), format!("Tgid:\t{pid}\nUid:\t0\n")).unwrap();
    let mut options = Options::new(Target::Processes(vec![pid]));
    options.proc_root = root.path().to_owned();
    options.source = RequestedSource::Clock;
    options.calibration = Some(Calibration::default());
    match Sampler::start(&options).and_then(|sampler| sampler.run(&mut Nothing)) {
        Err(error @ Error::EndedMeanwhile { .. }) => assert_eq!(
            error.to_string(),
            format!("process {pid} ended while nearpage attached to it: nothing was recorded")
        ),
        // On machines without permission for perf events.
        Err(Error::NoSource(_)) => eprintln!("skipped: no perf events here"),
        other => panic!("{:?}", other.map(|summary| summary.state)),
    }
}
