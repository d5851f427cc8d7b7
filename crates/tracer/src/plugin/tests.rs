use std::sync::mpsc::channel;

use nearpage_wire::trace::{
    Decoder, FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FrameHeader, FrameKind, Record,
};

use super::*;
use crate::process::tests::SETUP;

#[test]
fn the_end_waits_for_a_thread_that_is_in_a_system_call() {
    const RECORDS: u32 = 20_000;
    const VCPU: c_uint = 7;
    let _alone = vcpus::tests::alone();
    let folder = std::env::temp_dir().join(format!("nearpage-ends-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("TMPDIR can be written to");
    begin(Setup::parse(SETUP).expect("it is right"), &folder, 0).expect("TMPDIR can be written to");
    let (tell, hear) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // SAFETY: this host thread alone is the CPU.
            let vcpu = unsafe { Vcpu::of_callback(VCPU) }.expect("there are so many");
            let vcpu = vcpu.in_call();
            let mut thread = thread(&vcpu).expect("its process has begun");
            tell.send(()).expect("it is heard");
            for time_ns in 0..u64::from(RECORDS) {
                thread.record(&Record::Clock { time_ns });
            }
        });
        hear.recv().expect("it is told");
        // SAFETY: the other thread is in a system call.
        unsafe { end_all() };
    });
    // SAFETY: no other host thread is the CPU any more.
    let vcpu = unsafe { Vcpu::of_callback(VCPU) }.expect("there are so many");
    assert!(vcpu.traced().is_none() && thread(&vcpu).is_none());
    let traces = std::fs::read_dir(&folder)
        .expect("it is ours")
        .map(|file| file.expect("file").path());
    let mut traces = traces.filter(|path| path.extension().is_some_and(|kind| kind == "trace"));
    let bytes = std::fs::read(traces.next().expect("a trace")).expect("a trace");
    let (mut rest, mut clocks) = (&bytes[FILE_HEADER_BYTES..], 0);
    while !rest.is_empty() {
        let header = FrameHeader::from_bytes(rest).expect("frame");
        let (frame, behind) = rest.split_at(FRAME_HEADER_BYTES + header.payload_bytes as usize);
        assert!(FrameHeader::intact(frame));
        if header.kind == FrameKind::Records {
            let records = Decoder::new(&frame[FRAME_HEADER_BYTES..]);
            clocks += records.filter(Result::is_ok).count();
        }
        rest = behind;
    }
    assert_eq!(clocks, RECORDS as usize);
    std::fs::remove_dir_all(&folder).expect("it is ours");
}
