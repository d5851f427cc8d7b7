//! Encodes and decodes records, each predicted from the records before it in its frame.

use super::bytes::{Input, unzigzag, zigzag};
use super::{Damaged, RECORD_BYTES_MAX, Record, Reference, ReferenceKind, Segment, Served};

/// Rows of each predictor table.
const ROWS: usize = 512;

#[derive(Clone, Copy)]
struct Row {
    last_address: u64,
    /// Difference of the last two addresses. It predicts the next address once it has come twice.
    stride: i32,
    /// Instructions since the record before; bit 31 tells whether the stride has come twice.
    since: u32,
}

const TWICE: u32 = 1 << 31;

/// The state that writer and reader derive from the records of a frame so far.
struct Predictors {
    successor: [u64; ROWS],
    rows: [Row; ROWS],
    /// Instruction of the record before.
    instruction: u64,
    /// Row in which the successor of `instruction` is stored.
    place: usize,
}

/// The row of an instruction; its write-backs have another row.
fn row_of(instruction: u64, served: u8) -> usize {
    let write_back = u64::from(served == Served::WriteBack as u8);
    ((instruction << 1 | write_back).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55) as usize % ROWS
}

impl Predictors {
    const fn new() -> Self {
        Self {
            successor: [0; ROWS],
            rows: [Row {
                last_address: 0,
                stride: 0,
                since: 0,
            }; ROWS],
            instruction: 0,
            place: 0,
        }
    }

    fn address(row: &Row, instruction: u64, kind: u8) -> u64 {
        if kind == ReferenceKind::Fetch as u8 {
            return instruction;
        }
        let stride = if row.since & TWICE != 0 {
            i64::from(row.stride)
        } else {
            0
        };
        row.last_address.wrapping_add_signed(stride)
    }

    fn learn(&mut self, row: usize, instruction: u64, address: u64, since: u64) {
        self.successor[self.place % ROWS] = instruction;
        self.place = row;
        self.instruction = instruction;
        let row = &mut self.rows[row];
        let stride = address.wrapping_sub(row.last_address) as i64;
        let known = stride == i64::from(row.stride);
        row.stride = i32::try_from(stride).unwrap_or(0);
        row.last_address = address;
        row.since = since as u32 & !TWICE | if known { TWICE } else { 0 };
    }
}

/// Turns a thread's records into bytes. A frame needs an encoder of its own.
///
/// ```
/// use nearpage_wire::trace::{Decoder, Encoder, RECORD_BYTES_MAX, Record};
///
/// let mut payload = [0; 2 * RECORD_BYTES_MAX];
/// let mut encoder = Encoder::new();
/// let bytes = encoder.encode(&mut payload, 12, &Record::Mark { begin: true });
///
/// let mut decoder = Decoder::new(&payload[..bytes]);
/// assert_eq!(decoder.next(), Some(Ok((12, Record::Mark { begin: true }))));
/// assert_eq!(decoder.next(), None);
/// ```
pub struct Encoder {
    predictors: Predictors,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// An encoder at the beginning of a frame.
    pub const fn new() -> Self {
        Self {
            predictors: Predictors::new(),
        }
    }

    /// Forgets all records, as a new frame begins.
    pub fn restart(&mut self) {
        self.predictors = Predictors::new();
    }

    /// Puts a record, `since` instructions after the thread's previous record, at the beginning of `out`. Returns the
    /// number of bytes. If `out` is shorter than [`RECORD_BYTES_MAX`], returns 0 and learns nothing.
    #[inline]
    pub fn encode(&mut self, out: &mut [u8], since: u64, record: &Record) -> usize {
        if let Record::Reference(reference) = record {
            return self.encode_reference(out, since, reference);
        }
        let Some(out) = out.first_chunk_mut() else {
            return 0;
        };
        let mut out = Room { bytes: out, at: 0 };
        self.extension(&mut out, since, record);
        out.at
    }

    /// Like [`Self::encode`], for a reference.
    #[inline]
    pub fn encode_reference(&mut self, out: &mut [u8], since: u64, reference: &Reference) -> usize {
        let Some(out) = out.first_chunk_mut() else {
            return 0;
        };
        let mut out = Room { bytes: out, at: 0 };
        if reference.sampled || reference.kernel || reference.segment != Segment::User {
            self.extension(&mut out, since, &Record::Reference(*reference));
            return out.at;
        }
        let predictors = &mut self.predictors;
        let (kind, served) = (reference.kind as u8, reference.served as u8);
        let row_number = row_of(reference.instruction, served);
        let row = &predictors.rows[row_number];
        let instruction_known =
            predictors.successor[predictors.place % ROWS] == reference.instruction;
        let since_known = u64::from(row.since & !TWICE) == since;
        out.byte(
            served
                | kind << 3
                | u8::from(reference.tlb_miss) << 5
                | u8::from(instruction_known) << 6
                | u8::from(since_known) << 7,
        );
        if !instruction_known {
            let difference = reference.instruction.wrapping_sub(predictors.instruction);
            out.varint(zigzag(difference));
        }
        if !since_known {
            out.varint(since);
        }
        out.address(
            reference.address,
            Predictors::address(row, reference.instruction, kind),
        );
        predictors.learn(row_number, reference.instruction, reference.address, since);
        out.at
    }

    #[cold]
    fn extension(&mut self, out: &mut Room, since: u64, record: &Record) {
        let before = self.predictors.instruction;
        let mut fields = |number: u8, fields: &[u64]| {
            out.byte(7 | number << 3);
            out.varint(since);
            fields.iter().for_each(|field| out.varint(*field));
        };
        match *record {
            Record::Reference(reference) => {
                let (kind, served) = (reference.kind as u8, reference.served as u8);
                match reference.segment {
                    Segment::User => fields(0, &[]),
                    segment => {
                        fields(8, &[]);
                        out.byte(segment as u8);
                    }
                }
                out.byte(
                    served
                        | kind << 3
                        | u8::from(reference.tlb_miss) << 5
                        | u8::from(reference.sampled) << 6
                        | u8::from(reference.kernel) << 7,
                );
                out.varint(zigzag(reference.instruction.wrapping_sub(before)));
                let row = row_of(reference.instruction, served);
                let prediction =
                    Predictors::address(&self.predictors.rows[row], reference.instruction, kind);
                out.address(reference.address, prediction);
                self.predictors
                    .learn(row, reference.instruction, reference.address, since);
            }
            Record::FirstTouch {
                address,
                instruction,
            } => fields(
                1,
                &[
                    zigzag(instruction.wrapping_sub(before)),
                    zigzag(address.wrapping_sub(instruction)),
                ],
            ),
            Record::Signal { sequence, address } => fields(2, &[sequence, address]),
            Record::Resume {
                after,
                address,
                waited_instructions,
            } => fields(3, &[after, address, waited_instructions]),
            Record::Clock { time_ns } => fields(4, &[time_ns]),
            Record::Move { cpu } => fields(5, &[u64::from(cpu)]),
            Record::Mark { begin } => fields(6, &[if begin { 1 } else { 2 }]),
            Record::Preempted {
                waited_instructions,
            } => fields(7, &[waited_instructions]),
            Record::Depends { on } => fields(9, &[on]),
        }
    }
}

/// Decodes the records of a frame, each with the instructions since the record before. Ends at damage.
pub struct Decoder<'a> {
    input: Input<'a>,
    predictors: Predictors,
}

impl<'a> Decoder<'a> {
    /// A decoder of a frame's payload.
    pub const fn new(payload: &'a [u8]) -> Self {
        Self {
            input: Input { bytes: payload },
            predictors: Predictors::new(),
        }
    }

    /// Bytes not decoded yet.
    pub const fn rest(&self) -> usize {
        self.input.bytes.len()
    }

    #[inline]
    fn record(&mut self, head: u8) -> Option<(u64, Record)> {
        if head & 7 == 7 {
            return self.extension(head >> 3);
        }
        let (input, predictors) = (&mut self.input, &mut self.predictors);
        let served = Served::from_number(head & 7)?;
        let kind = ReferenceKind::from_number(head >> 3 & 3)?;
        let instruction = if head & 1 << 6 != 0 {
            predictors.successor[predictors.place]
        } else {
            let difference = unzigzag(input.varint()?);
            predictors.instruction.wrapping_add(difference)
        };
        let row_number = row_of(instruction, served as u8);
        let row = &predictors.rows[row_number];
        let since = if head & 1 << 7 != 0 {
            u64::from(row.since & !TWICE)
        } else {
            input.varint()?
        };
        let address = input.address(Predictors::address(row, instruction, kind as u8))?;
        predictors.learn(row_number, instruction, address, since);
        let reference = Reference {
            address,
            instruction,
            kind,
            served,
            tlb_miss: head & 1 << 5 != 0,
            sampled: false,
            kernel: false,
            segment: Segment::User,
        };
        Some((since, Record::Reference(reference)))
    }

    #[cold]
    fn extension(&mut self, number: u8) -> Option<(u64, Record)> {
        let (input, predictors) = (&mut self.input, &mut self.predictors);
        let before = predictors.instruction;
        let since = input.varint()?;
        let record = match number {
            0 | 8 => {
                let segment = if number == 0 {
                    Segment::User
                } else {
                    let number = *input.take(1)?.first()?;
                    Segment::from_number(number).filter(|segment| *segment != Segment::User)?
                };
                let head = *input.take(1)?.first()?;
                let served = Served::from_number(head & 7)?;
                let kind = ReferenceKind::from_number(head >> 3 & 3)?;
                let instruction = before.wrapping_add(unzigzag(input.varint()?));
                let row = row_of(instruction, served as u8);
                let prediction =
                    Predictors::address(&predictors.rows[row], instruction, kind as u8);
                let address = input.address(prediction)?;
                predictors.learn(row, instruction, address, since);
                Record::Reference(Reference {
                    address,
                    instruction,
                    kind,
                    served,
                    tlb_miss: head & 1 << 5 != 0,
                    sampled: head & 1 << 6 != 0,
                    kernel: head & 1 << 7 != 0,
                    segment,
                })
            }
            1 => {
                let instruction = before.wrapping_add(unzigzag(input.varint()?));
                Record::FirstTouch {
                    address: instruction.wrapping_add(unzigzag(input.varint()?)),
                    instruction,
                }
            }
            2 => Record::Signal {
                sequence: input.varint()?,
                address: input.varint()?,
            },
            3 => Record::Resume {
                after: input.varint()?,
                address: input.varint()?,
                waited_instructions: input.varint()?,
            },
            4 => Record::Clock {
                time_ns: input.varint()?,
            },
            5 => Record::Move {
                cpu: u32::try_from(input.varint()?).ok()?,
            },
            6 => Record::Mark {
                begin: match input.varint()? {
                    1 => true,
                    2 => false,
                    _ => return None,
                },
            },
            7 => Record::Preempted {
                waited_instructions: input.varint()?,
            },
            9 => Record::Depends {
                on: input.varint()?,
            },
            _ => return None,
        };
        Some((since, record))
    }
}

impl Iterator for Decoder<'_> {
    type Item = Result<(u64, Record), Damaged>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (head, rest) = self.input.bytes.split_first()?;
        self.input.bytes = rest;
        let record = self.record(*head);
        if record.is_none() {
            self.input.bytes = &[];
        }
        Some(record.ok_or(Damaged))
    }
}

/// Room for one record, whose fixed length keeps indices in bounds.
struct Room<'a> {
    bytes: &'a mut [u8; RECORD_BYTES_MAX],
    at: usize,
}

impl Room<'_> {
    #[inline]
    fn byte(&mut self, byte: u8) {
        self.bytes[self.at % RECORD_BYTES_MAX] = byte;
        self.at += 1;
    }

    /// Appends the lowest `count` bytes.
    #[inline]
    fn bytes(&mut self, bytes: u64, count: usize) {
        // The limit is never reached, but it lets the compiler leave out a check of the index.
        let at = self.at.min(RECORD_BYTES_MAX - 8);
        if let Some(room) = self.bytes[at..].first_chunk_mut() {
            *room = bytes.to_le_bytes();
        }
        self.at += count;
    }

    #[inline]
    fn varint(&mut self, mut value: u64) {
        if value < 0x80 {
            return self.byte(value as u8);
        }
        if value < SHORT {
            return self.short(value, false);
        }
        while value > 0x7f {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    /// Appends a varint below [`SHORT`], or nothing.
    #[inline]
    fn short(&mut self, value: u64, nothing: bool) {
        // Up to four groups of seven bits, each moved to a byte of its own at once.
        let groups = value & 0x7f
            | (value & 0x3f80) << 1
            | (value & 0x1f_c000) << 2
            | (value & 0xfe0_0000) << 3;
        let last = (groups | 1).ilog2() / 8;
        let more = 0x80_8080 & ((1 << (8 * last)) - 1);
        let count = if nothing { 0 } else { last as usize + 1 };
        self.bytes(groups | more, count);
    }

    #[inline]
    fn address(&mut self, address: u64, prediction: u64) {
        let difference = address.wrapping_sub(prediction);
        let tag = u64::from(difference.is_multiple_of(8));
        let value = zigzag((difference as i64 >> (3 * tag)) as u64);
        let rest = value >> 6;
        self.byte((value as u8 & 0x3f) << 1 | tag as u8 | u8::from(rest != 0) << 7);
        if rest < SHORT {
            // `short` takes the condition as a number: the processor could not predict a branch on it.
            self.short(rest, rest == 0);
        } else {
            self.varint(rest);
        }
    }
}

/// Varints of at most four bytes are below this value.
const SHORT: u64 = 1 << 28;
