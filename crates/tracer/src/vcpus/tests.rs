use std::sync::{Mutex, MutexGuard, PoisonError};

use nearpage_wire::tracer_setup::Setup;

use super::*;
use crate::process::{Process, tests::SETUP};

/// Held by each test that uses the table of threads, as [`take_all`] takes every test's.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process whose trace is in a folder that `test` names.
fn process(test: &str) -> &'static Process {
    let folder = std::env::temp_dir().join(format!("nearpage-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("TMPDIR can be written to");
    let setup = Setup::parse(SETUP).expect("it is right");
    Box::leak(Box::new(
        Process::new(setup, &folder, 0).expect("TMPDIR can be written to"),
    ))
}

fn begin(process: &'static Process) -> Option<Box<Thread>> {
    Thread::new(process, &process.take_new_thread())
}

fn finish(process: &'static Process) {
    std::fs::remove_dir_all(&process.folder).expect("it is ours");
}

fn vcpu(number: c_uint) -> Vcpu {
    // SAFETY: no other test uses the number, and each test is one host thread.
    unsafe { Vcpu::of_callback(number) }.expect("there are so many")
}

#[test]
fn a_thread_in_use_is_refused_to_whoever_asks_again() {
    let _alone = alone();
    let process = process("refused");
    let outer = vcpu(11);
    assert!(outer.traced().is_none(), "no thread has begun");
    let mut thread = outer.thread(|| begin(process)).expect("the first step");
    thread.ends_at = 7;
    let nested = vcpu(11);
    assert!(nested.traced().is_none() && nested.untraced().is_none());
    let again = nested.thread(|| unreachable!("the CPU has a thread"));
    assert!(again.is_none());
    let block = Run::new(0x40_1000, 3, 1);
    assert!(vcpu(11).note_block(block).is_err(), "it is in use");
    outer.stop_tracing();
    assert!(nested.traced().is_none() && nested.untraced().is_none());
    drop(thread);
    assert!(outer.traced().is_none(), "it is not traced");
    assert_eq!(nested.untraced().expect("nobody uses it").ends_at, 7);
    assert!(vcpu(11).note_block(block).is_err(), "it is not traced");
    outer.resume_tracing();
    assert!(vcpu(11).note_block(block).is_ok());
    assert_eq!(nested.traced().expect("nobody uses it").ends_at, 7);
    assert_eq!(outer.remove().expect("nobody uses it").ends_at, 7);
    assert!(outer.traced().is_none() && outer.remove().is_none());
    finish(process);
}

#[test]
fn a_thread_in_use_is_not_freed() {
    let _alone = alone();
    let [first, second] = ["not-freed", "begun-instead"].map(process);
    let vcpu = vcpu(12);
    let mut thread = vcpu.thread(|| begin(first)).expect("the first step");
    assert!(vcpu.remove().is_none());
    thread.ends_at = 9;
    let other = vcpu.thread(|| begin(second)).expect("the slot is free");
    assert_eq!((thread.ends_at, other.ends_at), (9, 0));
    drop((thread, other));
    assert!(vcpu.remove().is_some());
    [first, second].into_iter().for_each(finish);
}

#[test]
fn the_end_leaves_a_thread_in_a_system_call_alone() {
    let _alone = alone();
    let processes = ["quiet", "calling"].map(process);
    let (quiet, calling) = (vcpu(13), vcpu(14).in_call());
    for (vcpu, process) in [&quiet, &*calling].into_iter().zip(processes) {
        let mut thread = vcpu.thread(|| begin(process)).expect("the first step");
        thread.ends_at = vcpu.number().into();
    }
    let mut ended = Vec::new();
    // SAFETY: there is no other host thread.
    unsafe { take_all(|| false, |thread| ended.push(thread.ends_at)) };
    assert_eq!(ended, [13]);
    assert!(quiet.traced().is_none() && calling.traced().is_none());
    processes.into_iter().for_each(finish);
}

#[test]
fn cpus_beyond_the_table_have_no_thread() {
    // SAFETY: there is no such CPU.
    assert!(unsafe { Vcpu::of_callback(VCPUS as c_uint) }.is_none());
}
