//! Builds a `perf.data` file from the documented layout.

/// Appends the fields of a layout one after the other.
#[derive(Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// Appends text as the layout has paths and names: zero-terminated and padded to 8 bytes.
    pub fn text(mut self, text: &str) -> Self {
        self.0.extend(text.as_bytes());
        let padded = (text.len() + 1).next_multiple_of(8);
        self.0.extend(std::iter::repeat_n(0, padded - text.len()));
        self
    }
}

pub const TID: u64 = 1 << 1;
pub const TIME: u64 = 1 << 2;
pub const CPU: u64 = 1 << 7;
pub const IDENTIFIER: u64 = 1 << 16;
/// Fields that `perf mem record --sample-cpu` asks for: ip, thread, time, address, CPU, period, weight, `data_src`,
/// identifier.
pub const MEMORY: u64 = 1 | TID | TIME | 1 << 3 | CPU | 1 << 8 | 1 << 14 | 1 << 15 | IDENTIFIER;

pub const LOADS: u64 = 7;
pub const STORES: u64 = 9;
pub const L1_LOAD: u64 = 0x102_6810_0142;
pub const LOCAL_LOAD: u64 = 0x02 | 0x0d << 33;
pub const REMOTE_LOAD: u64 = LOCAL_LOAD | 1 << 37;

/// A file of `perf mem record`: two events, two nodes with two CPUs each.
pub struct PerfData {
    pub records: Vec<u8>,
    pub sample_type: u64,
    pub read_format: u64,
    pub branch_sample_type: u64,
    pub sample_regs_user: u64,
}

impl PerfData {
    pub fn new() -> Self {
        Self {
            records: Vec::new(),
            sample_type: MEMORY,
            read_format: 0,
            branch_sample_type: 0,
            sample_regs_user: 0,
        }
    }

    pub fn record(mut self, type_: u32, misc: u16, body: Bytes) -> Self {
        self.records.extend(type_.to_le_bytes());
        self.records.extend(misc.to_le_bytes());
        self.records.extend((body.0.len() as u16 + 8).to_le_bytes());
        self.records.extend(body.0);
        self
    }

    /// Appends a record other than a sample, with its trailer.
    pub fn event(self, type_: u32, misc: u16, time_ns: u64, pid: u32, body: Bytes) -> Self {
        let trailer = body.u32(pid).u32(pid).u64(time_ns).u64(0).u64(LOADS);
        self.record(type_, misc, trailer)
    }

    pub fn name(self, time_ns: u64, pid: u32, tid: u32, name: &str, exec: bool) -> Self {
        let body = Bytes::default().u32(pid).u32(tid).text(name);
        self.event(3, u16::from(exec) << 13 | 2, time_ns, pid, body)
    }

    pub fn fork(self, time_ns: u64, pid: u32, tid: u32, parent: u32) -> Self {
        let body = Bytes::default()
            .u32(pid)
            .u32(parent)
            .u32(tid)
            .u32(parent)
            .u64(time_ns);
        self.event(7, 0, time_ns, pid, body)
    }

    pub fn exit(self, time_ns: u64, pid: u32, tid: u32) -> Self {
        let body = Bytes::default()
            .u32(pid)
            .u32(1)
            .u32(tid)
            .u32(1)
            .u64(time_ns);
        self.event(4, 0, time_ns, pid, body)
    }

    pub fn map(
        self,
        time_ns: u64,
        pid: u32,
        address: u64,
        length: u64,
        protection: u32,
        path: &str,
    ) -> Self {
        let body = Bytes::default()
            .u32(pid)
            .u32(pid)
            .u64(address)
            .u64(length)
            .u64(0);
        let body = body.bytes(&[0; 24]).u32(protection).u32(2).text(path);
        self.event(10, 2, time_ns, pid, body)
    }

    pub fn sample(self, sample: Sample) -> Self {
        let body = Bytes::default()
            .u64(sample.event)
            .u64(0x40_1000)
            .u32(100)
            .u32(sample.tid);
        let body = body
            .u64(sample.time_ns)
            .u64(sample.address)
            .u32(sample.cpu)
            .u32(0);
        let body = body.u64(1000).u64(sample.latency).u64(sample.data_src);
        self.record(9, sample.mode, body)
    }

    fn attribute(&self, config: u64) -> Vec<u8> {
        // Loads and stores of the CPU's PMU, 4000 samples a second, with sample_id_all.
        let flags = 1 << 10 | 1 << 18;
        let bytes = Bytes::default()
            .u32(4)
            .u32(128)
            .u64(config)
            .u64(4000)
            .u64(self.sample_type);
        let mut bytes = bytes.u64(self.read_format).u64(flags).0;
        bytes.resize(128, 0);
        bytes[72..80].copy_from_slice(&self.branch_sample_type.to_le_bytes());
        bytes[80..88].copy_from_slice(&self.sample_regs_user.to_le_bytes());
        bytes
    }

    /// Feature sections by number: CPU description, command, event description, NUMA topology.
    fn features(&self) -> [(u64, Vec<u8>); 4] {
        let padded = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize((text.len() + 1).next_multiple_of(64), 0);
            let length = bytes.len() as u32;
            Bytes::default().u32(length).bytes(&bytes).0
        };
        let strings = |texts: &[&str]| {
            let count = Bytes::default().u32(texts.len() as u32).0;
            texts
                .iter()
                .fold(count, |bytes, text| [bytes, padded(text)].concat())
        };
        let node = |id, cpus| {
            Bytes::default()
                .u32(id)
                .u64(1 << 20)
                .u64(0)
                .bytes(&padded(cpus))
                .0
        };
        let event = |config, id: u64, name| {
            let head = Bytes::default().bytes(&self.attribute(config)).u32(1);
            head.bytes(&padded(name)).u64(id).0
        };
        [
            (8, padded("Some CPU @ 2.00GHz")),
            (11, strings(&["perf", "mem", "record", "./solve"])),
            (
                12,
                [
                    Bytes::default().u32(2).u32(128).0,
                    event(0x1cd, LOADS, "cpu/mem-loads,ldlat=30/P"),
                    event(0x82d0, STORES, "cpu/mem-stores/P"),
                ]
                .concat(),
            ),
            (
                14,
                [Bytes::default().u32(2).0, node(0, "0-1"), node(1, "2-3")].concat(),
            ),
        ]
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let features = self.features();
        let (ids_at, attributes_at) = (104, 120);
        let data_at = attributes_at + 2 * 144;
        let features_at = data_at + self.records.len() as u64;
        let mut section_at = features_at + 16 * features.len() as u64;
        let header = Bytes::default().bytes(b"PERFILE2").u64(104).u64(144);
        let header = header
            .u64(attributes_at)
            .u64(2 * 144)
            .u64(data_at)
            .u64(self.records.len() as u64);
        let bitmap = features
            .iter()
            .fold(0, |bits, (number, _)| bits | 1u64 << number);
        let mut bytes = header.u64(0).u64(0).u64(bitmap).u64(0).u64(0).u64(0);
        bytes = bytes.u64(LOADS).u64(STORES);
        for (config, at) in [(0x1cd, ids_at), (0x82d0, ids_at + 8)] {
            bytes = bytes.bytes(&self.attribute(config)).u64(at).u64(8);
        }
        bytes = bytes.bytes(&self.records);
        for (_, section) in &features {
            bytes = bytes.u64(section_at).u64(section.len() as u64);
            section_at += section.len() as u64;
        }
        features
            .iter()
            .fold(bytes, |bytes, (_, section)| bytes.bytes(section))
            .0
    }

    /// The bytes as they come through a pipe.
    pub fn piped(&self) -> Vec<u8> {
        let mut piped = Self {
            records: Vec::new(),
            ..*self
        };
        for (config, id) in [(0x1cd, LOADS), (0x82d0, STORES)] {
            piped = piped.record(64, 0, Bytes(self.attribute(config)).u64(id));
        }
        for (number, section) in self.features() {
            piped = piped.record(80, 0, Bytes::default().u64(number).bytes(&section));
        }
        // Data of tracepoints and of an instruction trace, which must be skipped.
        piped = piped.record(66, 0, Bytes::default().u32(5).u32(0));
        piped.records.extend([0xff; 8]);
        piped = piped.record(71, 0, Bytes::default().u64(16).u64(0).u64(0).u64(0).u64(0));
        piped.records.extend([0xff; 16]);
        let header = Bytes::default().bytes(b"PERFILE2").u64(16);
        header.bytes(&piped.records).bytes(&self.records).0
    }
}

#[derive(Clone, Copy)]
pub struct Sample {
    pub event: u64,
    pub mode: u16,
    pub tid: u32,
    pub time_ns: u64,
    pub address: u64,
    pub cpu: u32,
    pub latency: u64,
    pub data_src: u64,
}

pub const SAMPLE: Sample = Sample {
    event: LOADS,
    mode: 2,
    tid: 100,
    time_ns: 50,
    address: 0x7000_0010,
    cpu: 0,
    latency: 300,
    data_src: LOCAL_LOAD,
};
