//! Finds loads whose addresses come from the data of earlier misses.
//!
//! A processor that executes out of order has several misses under way at once, unless the address of one comes from the
//! data of another. It fetches the elements of a linked list one after the other, but those of an array as far ahead as it
//! has room for. When the emulator translates a block, [`Flow`] finds once, from the instructions, where the block's
//! addresses come from. While the block runs, [`Origins`] tracks for each register the miss that its value comes from.
//!
//! # What is simplified
//! Values are not followed through memory: a pointer that was stored and is loaded again, by a hit, has no origin. Nor are
//! values in vector registers, and dependences by flags and branches, which a processor predicts. Only the first 64 loads
//! of a block are followed.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, OpAccess, Register};

use crate::thread::Run;

/// General-purpose registers.
const REGISTERS: usize = 16;
/// Most loads of a block that are followed.
const LOADS: usize = 64;

/// What a value is computed from: registers at the block's beginning, and loads of the block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sources {
    registers: u16,
    loads: u64,
}

impl Sources {
    fn and(self, other: Self) -> Self {
        Self {
            registers: self.registers | other.registers,
            loads: self.loads | other.loads,
        }
    }
}

/// A load of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    /// Number of its instruction in the block.
    number: u64,
    address: Sources,
}

/// Where the addresses and results of a block come from.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Flow {
    loads: Vec<Load>,
    /// Registers whose values the block changes, and what the new values are computed from.
    written: Vec<(usize, Sources)>,
}

/// Builds a block's flow, instruction by instruction.
pub struct FlowBuilder {
    factory: InstructionInfoFactory,
    registers: [Sources; REGISTERS],
    loads: Vec<Load>,
}

fn general(register: Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number() % REGISTERS)
}

fn reads(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

fn writes(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

impl Default for FlowBuilder {
    fn default() -> Self {
        let mut registers = [Sources::default(); REGISTERS];
        for (number, register) in registers.iter_mut().enumerate() {
            register.registers = 1 << number;
        }
        Self {
            factory: InstructionInfoFactory::new(),
            registers,
            loads: Vec::new(),
        }
    }
}

impl FlowBuilder {
    /// The next instruction: its number in the block, its address, its bytes.
    pub fn add(&mut self, number: usize, address: u64, text: &[u8]) {
        let mut instruction = Instruction::default();
        let mut decoder = Decoder::with_ip(64, text, address, DecoderOptions::NONE);
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            return;
        }
        let info = self.factory.info(&instruction);
        let of = |register: Register| {
            general(register).map_or(Sources::default(), |number| self.registers[number])
        };
        let mut inputs = Sources::default();
        for used in info.used_registers() {
            if reads(used.access()) {
                inputs = inputs.and(of(used.register()));
            }
        }
        let mut from = Sources::default();
        let mut loads = false;
        for memory in info.used_memory() {
            if reads(memory.access()) {
                loads = true;
                from = from.and(of(memory.base())).and(of(memory.index()));
            }
        }
        if loads && self.loads.len() < LOADS {
            inputs.loads |= 1 << self.loads.len();
            let load = Load {
                number: number as u64,
                address: from,
            };
            self.loads.push(load);
        }
        for used in info.used_registers() {
            let Some(number) = general(used.register()) else {
                continue;
            };
            // The stack pointer changes by constants alone.
            if !writes(used.access()) || used.register().full_register() == Register::RSP {
                continue;
            }
            // After a partial or conditional write, the earlier value still counts.
            let whole = used.register().size() >= 4 && used.access() == OpAccess::Write
                || used.access() == OpAccess::ReadWrite;
            self.registers[number] = match whole {
                true => inputs,
                false => inputs.and(self.registers[number]),
            };
        }
    }

    /// The block's flow.
    pub fn finish(self) -> Flow {
        let registers = self.registers.into_iter().enumerate();
        let changed = registers.filter(|&(number, sources)| {
            sources
                != Sources {
                    registers: 1 << number,
                    loads: 0,
                }
        });
        Flow {
            loads: self.loads,
            written: changed.collect(),
        }
    }
}

/// Flows of all blocks that were translated.
#[derive(Default)]
pub struct Flows {
    by_block: RwLock<HashMap<u64, &'static Flow>>,
}

impl Flows {
    /// A block was translated, for the first time or anew.
    pub fn add(&self, run: Run, flow: Flow) {
        let mut known = self
            .by_block
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if known.get(&run.0).is_none_or(|before| **before != flow) {
            // A thread may read the flow as long as it can run the translated block, which is for good.
            known.insert(run.0, Box::leak(Box::new(flow)));
        }
    }

    fn get(&self, run: Run) -> Option<&'static Flow> {
        let known = self.by_block.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&run.0).copied()
    }
}

/// Lines of recent misses that are remembered: more than any processor has under way.
const FETCHED: usize = 64;
/// Blocks whose flows a thread finds without a lock.
const RECENT: usize = 1024;

/// The miss that each register's value comes from, as the miss's position in the thread's instructions, from 1; 0: none.
pub struct Origins {
    registers: [u64; REGISTERS],
    /// Origins of the block's loads so far.
    loads: [u64; LOADS],
    block: Option<&'static Flow>,
    /// The block's load that is expected next.
    next: usize,
    /// Lines that were fetched last, and by which misses: a hit in such a line waits for its miss, too.
    fetched: [(u64, u64); FETCHED],
    /// Blocks by their hash, and their flows.
    recent: [(u64, Option<&'static Flow>); RECENT],
}

impl Default for Origins {
    fn default() -> Self {
        Self {
            registers: [0; REGISTERS],
            loads: [0; LOADS],
            block: None,
            next: 0,
            fetched: [(u64::MAX, 0); FETCHED],
            recent: [(0, None); RECENT],
        }
    }
}

impl Origins {
    /// Remembers that a miss fetches the line.
    pub fn fetch(&mut self, line: u64, miss: u64) {
        self.fetched[line as usize % FETCHED] = (line, miss);
    }

    /// The miss that fetched the line, if it is among the recent ones; else 0.
    fn of_line(&self, line: u64) -> u64 {
        match self.fetched[line as usize % FETCHED] {
            (fetched, miss) if fetched == line => miss,
            _ => 0,
        }
    }

    /// A block begins.
    pub fn begin(&mut self, flows: &Flows, run: Run) {
        let place = (run.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize % RECENT;
        if self.recent[place].0 != run.0 {
            self.recent[place] = (run.0, flows.get(run));
        }
        self.enter(self.recent[place].1);
    }

    fn latest(&self, sources: Sources) -> u64 {
        let mut latest = 0;
        let mut registers = sources.registers;
        while registers != 0 {
            latest = latest.max(self.registers[registers.trailing_zeros() as usize % REGISTERS]);
            registers &= registers - 1;
        }
        let mut loads = sources.loads;
        while loads != 0 {
            latest = latest.max(self.loads[loads.trailing_zeros() as usize % LOADS]);
            loads &= loads - 1;
        }
        latest
    }

    /// Applies the finished block to the registers, and begins the next block; `None`: a block without a known flow.
    fn enter(&mut self, next: Option<&'static Flow>) {
        if let Some(block) = self.block {
            let mut values = [0; REGISTERS];
            for (value, (_, sources)) in values.iter_mut().zip(&block.written) {
                *value = self.latest(*sources);
            }
            for (value, (register, _)) in values.iter().zip(&block.written) {
                self.registers[register % REGISTERS] = *value;
            }
            let loads = block.loads.len().min(LOADS);
            self.loads[..loads].fill(0);
        }
        self.block = next;
        self.next = 0;
    }

    /// The miss that the address of instruction `number` of the block comes from, if that instruction loads; else 0.
    pub fn of_address(&mut self, number: u64) -> u64 {
        let Some(block) = self.block else {
            return 0;
        };
        let rest = block.loads.get(self.next..).unwrap_or_default();
        let before = rest.iter().take_while(|load| load.number < number).count();
        self.next += before;
        match block.loads.get(self.next) {
            Some(load) if load.number == number => self.latest(load.address),
            _ => 0,
        }
    }

    /// Notes that instruction `number` has loaded from the line; its address comes from the miss `of_address`.
    pub fn load(&mut self, number: u64, line: u64, of_address: u64) {
        let origin = self.of_line(line).max(of_address);
        let load = self.block.and_then(|block| block.loads.get(self.next));
        if load.is_some_and(|load| load.number == number)
            && let Some(loaded) = self.loads.get_mut(self.next)
        {
            *loaded = origin.max(*loaded);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(instructions: &[&[u8]]) -> &'static Flow {
        let mut builder = FlowBuilder::default();
        for (number, text) in instructions.iter().enumerate() {
            builder.add(number, 0x1000 + 8 * number as u64, text);
        }
        Box::leak(Box::new(builder.finish()))
    }

    /// Runs a loop's block `rounds` times, with every load a miss. Returns the misses that the loads' addresses come from.
    fn run(block: &'static Flow, length: u64, rounds: u64) -> Vec<u64> {
        let mut origins = Origins::default();
        let mut found = Vec::new();
        for round in 0..rounds {
            origins.enter(Some(block));
            for load in &block.loads {
                let origin = origins.of_address(load.number);
                found.push(origin);
                let position = 1 + round * length + load.number;
                origins.fetch(position, position);
                origins.load(load.number, position, origin);
            }
        }
        found
    }

    #[test]
    fn an_element_of_a_list_waits_for_the_one_before() {
        // mov rax, [rax]; add rdx, 1; jne
        let chase = flow(&[b"\x48\x8b\x00", b"\x48\x83\xc2\x01", b"\x75\xf0"]);
        assert_eq!(run(chase, 3, 4), [0, 1, 4, 7]);
    }

    #[test]
    fn an_element_of_an_array_waits_for_nothing() {
        // mov rdx, [rcx + 8 * rax]; add rsi, rdx; add rax, 1; jne
        let stream = flow(&[
            b"\x48\x8b\x14\xc1",
            b"\x48\x01\xd6",
            b"\x48\x83\xc0\x01",
            b"\x75\xf0",
        ]);
        assert_eq!(run(stream, 4, 4), [0; 4]);
    }

    #[test]
    fn an_index_that_is_loaded_is_waited_for_within_a_block_and_across() {
        // movsxd rdx, dword [rcx + 4 * rax]; add rax, 1; mulsd xmm0, [rdi + 8 * rdx]
        let gather = flow(&[
            b"\x48\x63\x14\x81",
            b"\x48\x83\xc0\x01",
            b"\xf2\x0f\x59\x04\xd7",
        ]);
        assert_eq!(run(gather, 3, 3), [0, 1, 0, 4, 0, 7]);
        // mov rdx, [rcx] in one block, lea rsi, [rdx + 8]; mov rsi, [rsi] in the next.
        let (first, second) = (
            flow(&[b"\x48\x8b\x11"]),
            flow(&[b"\x48\x8d\x72\x08", b"\x48\x8b\x36"]),
        );
        let mut origins = Origins::default();
        origins.enter(Some(first));
        assert_eq!(origins.of_address(0), 0);
        origins.fetch(77, 5);
        origins.load(0, 77, 0);
        origins.enter(Some(second));
        assert_eq!(origins.of_address(1), 5);
    }

    #[test]
    fn overwritten_registers_have_no_origin() {
        // mov rdx, [rcx]; xor edx, edx; mov rsi, [rdx]
        let cleared = flow(&[b"\x48\x8b\x11", b"\x31\xd2", b"\x48\x8b\x32"]);
        assert_eq!(run(cleared, 3, 1), [0, 0]);
        // mov dl, [rcx] keeps the upper bits: mov rdx, [rsi]; mov dl, [rcx]; mov rax, [rdx]
        let part = flow(&[b"\x48\x8b\x16", b"\x8a\x11", b"\x48\x8b\x02"]);
        assert_eq!(run(part, 3, 1), [0, 0, 2]);
    }

    #[test]
    fn a_hit_hands_on_what_its_address_comes_from() {
        let chase = flow(&[b"\x48\x8b\x00"]);
        let mut origins = Origins::default();
        // A hit in a line that another instruction's miss fetches waits for that miss.
        origins.fetch(3, 9);
        for (line, expected) in [(3, 0), (4, 9), (5, 9)] {
            origins.enter(Some(chase));
            let origin = origins.of_address(0);
            assert_eq!(origin, expected);
            origins.load(0, line, origin);
        }
    }

    #[test]
    fn bytes_that_are_no_instruction_and_blocks_of_many_loads_are_survived() {
        let loads = vec![&b"\x48\x8b\x00"[..]; 200];
        assert_eq!(flow(&loads).loads.len(), LOADS);
        assert_eq!(flow(&[b"", b"\x06", b"\xff\xff"]).loads, []);
        let mut origins = Origins::default();
        origins.enter(Some(flow(&loads)));
        assert_eq!(origins.of_address(150), 0);
        origins.load(150, 0, 3);
    }
}
