//! Traces as the tracer writes them.

use std::fs;
use std::path::Path;

use nearpage_machine::{Machine, preset};
use nearpage_recording::LogWriter;
use nearpage_recording::trace::{TraceOptions, Tracing};
use nearpage_wire::trace::{
    COUNTERS, EVENT_BYTES_MAX, Encoder, Event, FRAME_HEADER_BYTES, FileHeader, FrameHeader,
    FrameKind, RECORD_BYTES_MAX, Record, Reference, ReferenceKind, Segment, Served,
};

/// A trace file under construction.
pub struct TraceFile {
    pub header: FileHeader,
    pub bytes: Vec<u8>,
}

impl TraceFile {
    pub fn of(pid: u32, start_ns: u64) -> Self {
        Self::forked(pid, start_ns, 0)
    }

    pub fn forked(pid: u32, start_ns: u64, parent_pid: u32) -> Self {
        let header = FileHeader {
            pid,
            page_bytes: 4096,
            line_bytes: 64,
            sample_period: 0,
            start_ns,
            quantum: 10_000,
            parent_pid,
            whole_system: false,
            dependences: false,
        };
        Self {
            header,
            bytes: header.to_bytes().to_vec(),
        }
    }

    /// Appends a frame of records, each with the instructions since the record before.
    pub fn records(
        &mut self,
        thread: u32,
        virtual_time: u64,
        time_ns: u64,
        records: &[(u64, Record)],
    ) -> &mut Self {
        let mut encoder = Encoder::new();
        let mut frame = vec![0; FRAME_HEADER_BYTES];
        for (since, record) in records {
            let mut room = [0; RECORD_BYTES_MAX];
            let length = encoder.encode(&mut room, *since, record);
            frame.extend_from_slice(&room[..length]);
        }
        self.frame(
            FrameKind::Records,
            thread,
            records.len(),
            virtual_time,
            time_ns,
            frame,
        )
    }

    pub fn events(&mut self, virtual_time: u64, time_ns: u64, events: &[Event]) -> &mut Self {
        let mut frame = vec![0; FRAME_HEADER_BYTES];
        for event in events {
            let mut room = vec![0; EVENT_BYTES_MAX];
            let length = event.encode(&mut room);
            frame.extend_from_slice(&room[..length]);
        }
        self.frame(
            FrameKind::Events,
            0,
            events.len(),
            virtual_time,
            time_ns,
            frame,
        )
    }

    fn frame(
        &mut self,
        kind: FrameKind,
        thread: u32,
        records: usize,
        virtual_time: u64,
        time_ns: u64,
        mut frame: Vec<u8>,
    ) -> &mut Self {
        let header = FrameHeader {
            kind,
            thread,
            records: records as u32,
            payload_bytes: (frame.len() - FRAME_HEADER_BYTES) as u32,
            virtual_time,
            time_ns,
        };
        header.seal(&mut frame);
        self.bytes.extend_from_slice(&frame);
        self
    }

    pub fn end(&mut self) -> &mut Self {
        self.events(0, self.header.start_ns, &[Event::Counters([0; COUNTERS])])
    }

    pub fn write(&self, folder: &Path) {
        let FileHeader { pid, start_ns, .. } = self.header;
        fs::write(
            folder.join(format!("trace-{pid}-{start_ns}.trace")),
            &self.bytes,
        )
        .unwrap();
    }
}

pub fn machine() -> Machine {
    preset("flash-8").unwrap()
}

/// An unfinished recording with these files of the tracer.
pub fn record(folder: &Path, options: &TraceOptions, traces: &[TraceFile]) -> LogWriter {
    record_on(&machine(), folder, options, traces)
}

/// Like [`record`], for another machine.
pub fn record_on(
    machine: &Machine,
    folder: &Path,
    options: &TraceOptions,
    traces: &[TraceFile],
) -> LogWriter {
    let (tracing, _) = Tracing::new(machine, "flash-8", options).unwrap();
    let metadata = nearpage_recording::Metadata {
        source: nearpage_recording::Source::Tracer,
        tracing: Some(tracing),
        ..super::metadata()
    };
    let log = LogWriter::create(folder, metadata, machine).unwrap();
    let traces_folder = log.trace_folder().unwrap();
    traces.iter().for_each(|trace| trace.write(&traces_folder));
    log
}

pub fn start(
    thread: u32,
    tid: u32,
    cpu: u32,
    started_by: u64,
    virtual_time: u64,
) -> Event<'static> {
    Event::ThreadStart {
        thread,
        tid,
        cpu,
        started_by,
        virtual_time,
        start_routine: 0,
    }
}

pub fn map(
    virtual_time: u64,
    address: u64,
    length: u64,
    protection: u32,
    inode: u64,
    path: &str,
) -> Event<'_> {
    Event::Map {
        protection,
        flags: 2,
        virtual_time,
        address,
        length,
        offset: 0,
        device: u64::from(inode != 0),
        inode,
        path: path.as_bytes(),
    }
}

pub fn reference(address: u64, kind: ReferenceKind, served: Served) -> Record {
    Record::Reference(Reference {
        address,
        instruction: 0x40_1000,
        kind,
        served,
        tlb_miss: false,
        sampled: false,
        kernel: false,
        segment: Segment::User,
    })
}

pub fn load(address: u64) -> Record {
    reference(address, ReferenceKind::Load, Served::Memory)
}

pub fn touch(address: u64) -> Record {
    Record::FirstTouch {
        address,
        instruction: 0x40_1000,
    }
}
