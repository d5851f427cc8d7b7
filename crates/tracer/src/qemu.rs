//! QEMU's plugin interface, as far as it is needed: `include/qemu/qemu-plugin.h` of QEMU 7.2 (API
//! version 1) and 9.0 (version 2); 10.0 (version 4) loads plugins from version 2 on.
//!
//! One binary serves all. What QEMU asks a plugin for is a variable with the version; its
//! constructor, which runs before QEMU reads it, sets it to 2 if QEMU has `qemu_plugin_num_vcpus`,
//! which replaced `qemu_plugin_n_vcpus` in version 2. The other differences (inline
//! counters, and from version 3 on `qemu_plugin_insn_data`) concern functions that are not used. Functions are looked up
//! when the plugin is installed: a missing one gives a message, and tests need no QEMU.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::error::StartError;
use crate::system;

/// QEMU's number of the plugin.
pub type Id = u64;
/// A translation block while it is translated.
#[repr(C)]
pub struct Block([u8; 0]);
/// An instruction of a block.
#[repr(C)]
pub struct Instruction([u8; 0]);

/// The API version for which this plugin says it is made.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static mut qemu_plugin_version: c_int = 1;

#[used]
#[unsafe(link_section = ".init_array")]
static CHOOSE_VERSION: extern "C" fn() = choose_version;

extern "C" fn choose_version() {
    if is_newer() {
        // SAFETY: constructors run alone, before QEMU looks for the variable.
        unsafe { qemu_plugin_version = 2 };
    }
}

/// Does QEMU have version 2 of the interface, or a later one?
pub fn is_newer() -> bool {
    system::symbol(c"qemu_plugin_num_vcpus").is_some()
}

/// What QEMU tells plugins of itself.
#[repr(C)]
pub struct Info {
    /// Name of the guest's architecture.
    pub target_name: *const c_char,
    version: [c_int; 2],
    /// QEMU emulates a whole machine rather than a program.
    pub system_emulation: bool,
}

/// A callback does not read registers.
pub const NO_REGISTERS: c_int = 0;
/// A callback is for reads and writes. (If asked for one of them, QEMU 7.2 reports reads as
/// writes, and writes twice.)
pub const ALL_ACCESSES: c_int = 3;

/// QEMU's description of an access: its size, and whether it writes.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct AccessKind(pub u32);

/// The bit of [`AccessKind`] that is set for writes.
#[derive(Clone, Copy)]
pub struct StoreBit(u32);

impl StoreBit {
    /// The bit that [`find`] found; before that, QEMU 7.2's.
    #[inline]
    pub fn known() -> Self {
        Self(STORE_BIT.load(Relaxed))
    }
}

static STORE_BIT: AtomicU32 = AtomicU32::new(1 << 17);
static QEMU: OnceLock<Interface> = OnceLock::new();

impl AccessKind {
    /// A read and a write of a byte, as QEMU 7.2 describes them.
    pub const LOAD_AND_STORE: [Self; 2] = [Self(1 << 16), Self(1 << 17)];

    /// Does it write?
    #[inline]
    pub fn is_store(self, bit: StoreBit) -> bool {
        self.0 & bit.0 != 0
    }

    /// Bytes of the access: 1 to 16.
    pub fn size_bytes(self) -> u64 {
        let Some(qemu) = QEMU.get() else { return 1 };
        // SAFETY: QEMU's function, with what QEMU gave.
        1 << (unsafe { (qemu.mem_size_shift)(self.0) } & 7)
    }
}

/// QEMU's functions, once they were looked up.
pub fn qemu() -> Option<&'static Interface> {
    QEMU.get()
}

/// Looks QEMU's functions up, and finds the bit that is set for writes.
///
/// # Errors
/// A function that QEMU lacks, or kinds of access that it does not tell apart.
pub fn find() -> Result<&'static Interface, StartError> {
    let qemu = Interface::find().map_err(StartError::NoFunction)?;
    STORE_BIT.store(store_bit(&qemu)?, Relaxed);
    Ok(QEMU.get_or_init(|| qemu))
}

/// Finds the bit that is set for writes. QEMU has a function that tests this bit, but to call it for each access would be
/// too slow.
fn store_bit(qemu: &Interface) -> Result<u32, StartError> {
    let mut bits = (0..u32::BITS)
        .map(|bit| 1 << bit)
        // SAFETY: QEMU's function, which takes any number.
        .filter(|kind| unsafe { (qemu.mem_is_store)(*kind) });
    match (bits.next(), bits.next()) {
        (Some(bit), None) => Ok(bit),
        _ => Err(StartError::UnknownStores),
    }
}

/// Callback with a CPU's number.
pub type VcpuCallback = unsafe extern "C" fn(Id, c_uint);
/// A block has been translated.
pub type TranslationCallback = unsafe extern "C" fn(Id, *mut Block);
/// A block begins to run.
pub type BlockCallback = unsafe extern "C" fn(c_uint, *mut c_void);
/// An access has been made: CPU, kind, guest address.
pub type MemoryCallback = unsafe extern "C" fn(c_uint, AccessKind, u64, *mut c_void);
/// A system call begins: CPU, number, arguments.
pub type SyscallCallback =
    unsafe extern "C" fn(Id, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);
/// A system call returns: CPU, number, result.
pub type SyscallReturnCallback = unsafe extern "C" fn(Id, c_uint, i64, i64);
/// All callbacks have been removed, and no CPU runs.
pub type ResetCallback = unsafe extern "C" fn(Id);
/// QEMU ends.
pub type ExitCallback = unsafe extern "C" fn(Id, *mut c_void);

macro_rules! interface {
    ($(#[$about:meta])* $interface:ident, $prefix:literal;
     $($(#[$meta:meta])* fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        $(#[$about])*
        #[allow(missing_docs)]
        pub struct $interface {
            $($(#[$meta])* pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $interface {
            /// Looks the functions up.
            ///
            /// # Errors
            /// The name of the first that is missing.
            pub fn find() -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        const NAME: &CStr = match CStr::from_bytes_with_nul(
                            concat!($prefix, stringify!($name), "\0").as_bytes(),
                        ) {
                            Ok(name) => name,
                            Err(_) => c"",
                        };
                        let address = system::symbol(NAME).ok_or(stringify!($name))?;
                        // SAFETY: QEMU's header declares that function with these types.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

interface! {
    /// QEMU's functions.
    Interface, "qemu_plugin_";
    fn register_vcpu_exit_cb(Id, VcpuCallback);
    fn register_vcpu_tb_trans_cb(Id, TranslationCallback);
    fn register_vcpu_tb_exec_cb(*mut Block, BlockCallback, c_int, *mut c_void);
    fn register_vcpu_insn_exec_cb(*mut Instruction, BlockCallback, c_int, *mut c_void);
    fn register_vcpu_mem_cb(*mut Instruction, MemoryCallback, c_int, c_int, *mut c_void);
    fn register_vcpu_syscall_cb(Id, SyscallCallback);
    fn register_vcpu_syscall_ret_cb(Id, SyscallReturnCallback);
    fn register_atexit_cb(Id, ExitCallback, *mut c_void);
    fn tb_n_insns(*const Block) -> usize;
    fn tb_vaddr(*const Block) -> u64;
    fn tb_get_insn(*const Block, usize) -> *mut Instruction;
    fn insn_vaddr(*const Instruction) -> u64;
    fn insn_haddr(*const Instruction) -> *const u8;
    fn insn_size(*const Instruction) -> usize;
    fn mem_size_shift(u32) -> c_uint;
    fn mem_is_store(u32) -> bool;
}

interface! {
    /// QEMU's own, for the guest's clock (`sysemu/cpu-timers.h` of 7.2).
    ClockInterface, "cpu_";
    fn enable_ticks();
    fn disable_ticks();
}

interface! {
    /// Guest time: functions of a QEMU with `qemu/lab.patch`.
    LabInterface, "qemu_plugin_lab_";
    fn start(u32, u32, u32);
    fn stall(u64);
    fn page_walk(u64, *mut *const c_void, *mut u32) -> c_int;
    fn count() -> u64;
    fn pause();
}

/// QEMU's description of the place of an access.
#[repr(C)]
pub struct HostAddress([u8; 0]);

/// A block of the guest's memory.
#[repr(C)]
pub struct MemoryBlock([u8; 0]);

interface! {
    /// Functions of the plugin interface for a whole machine.
    SystemInterface, "qemu_plugin_";
    fn get_hwaddr(u32, u64) -> *const HostAddress;
    fn hwaddr_is_io(*const HostAddress) -> bool;
    fn register_vcpu_idle_cb(Id, VcpuCallback);
    fn reset(Id, ResetCallback);
}

interface! {
    /// Functions of QEMU's own (`exec/cpu-common.h` of 7.2) that say where its blocks of memory
    /// are. They are no part of the plugin interface, which has no other way from the host
    /// address of code to a place in the guest's memory.
    MemoryInterface, "qemu_ram_";
    fn foreach_block(unsafe extern "C" fn(*mut MemoryBlock, *mut c_void) -> c_int, *mut c_void) -> c_int;
    fn get_host_addr(*mut MemoryBlock) -> *const u8;
    fn get_offset(*mut MemoryBlock) -> u64;
    fn get_used_length(*mut MemoryBlock) -> u64;
    fn get_idstr(*mut MemoryBlock) -> *const c_char;
}
