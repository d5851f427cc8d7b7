//! Errors of running a command in the lab.

use std::path::PathBuf;

/// Why a command can't be run in the lab.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum LabError {
    #[error(
        "no emulator with modelled time in {}: build it with crates/tracer/qemu/build (five minutes), or name its \
         folder with NEARPAGE_LAB",
        .0.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    NoEmulator(Vec<PathBuf>),
    #[error(
        "{0} of the emulator's firmware is missing: install the Debian packages seabios and qemu-system-data"
    )]
    NoFirmware(&'static str),
    #[error("no static busybox found on PATH: install the Debian package busybox-static")]
    NoBusybox,
    #[error(
        "no kernel with its modules in {}: install one (the Debian package linux-image-amd64), or unpack such a package \
         without installing it (dpkg-deb -x linux-image-VERSION.deb FOLDER) and give --kernel FOLDER/boot/vmlinuz-VERSION",
        .0.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" or ")
    )]
    NoKernel(Vec<PathBuf>),
    #[error("--kernel {}: no such file; expected a kernel's image, such as /boot/vmlinuz-6.12.0-amd64", .0.display())]
    NoSuchKernel(PathBuf),
    #[error(
        "{}: its modules are missing; expected them in {}, where the kernel's package has them",
        kernel.display(),
        modules.display()
    )]
    NoModules { kernel: PathBuf, modules: PathBuf },
    #[error("{}: can't be read: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{}: no Linux kernel for x86-64 (bzImage), which the emulator boots", .0.display())]
    OtherKernel(PathBuf),
    #[error("{}: can't be unpacked with `{tool}`", module.display())]
    Module { module: PathBuf, tool: &'static str },
    #[error("{path:?}: the emulator takes no path with a comma, space or byte that is no UTF-8")]
    Path { path: PathBuf },
    #[error("--cpus {given}: {machine} has {cpus} on {nodes} nodes; expected {nodes} to {most}")]
    Cpus {
        given: u32,
        machine: String,
        cpus: u32,
        nodes: u32,
        most: u32,
    },
    #[error(
        "--memory: {nodes} nodes of {mib} MiB are more than the {free_mib} MiB that this machine has free"
    )]
    Memory { nodes: u32, mib: u32, free_mib: u64 },
    #[error("{machine}: {cause}")]
    Setup { machine: String, cause: String },
    #[error(
        "the guest did not boot within {seconds} s of processor time (--boot-limit sets another limit); its console ends with: {console}"
    )]
    NotBooted { seconds: u64, console: String },
    #[error("the guest went down before the command ended; its console ends with: {console}")]
    Died { console: String },
    #[error("{} is full: the guest's output has no place; TMPDIR names another folder", folder.display())]
    Full { folder: PathBuf },
    #[error("the guest ran out of memory: --memory gives nodes more than {mib} MiB each")]
    OutOfMemory { mib: u32 },
    #[error("the emulator ended before the guest booted: {message}")]
    Emulator { message: String },
    #[error("the command still ran after {seconds} s; --time-limit sets another limit")]
    TooLong { seconds: u64 },
    #[error(
        "the command did not reach nearpage_begin, where --fast begins to model: leave out --fast, or mark the program"
    )]
    NoMarker,
    #[error("what the model counted is missing or damaged")]
    NoCounts,
}

impl LabError {
    /// Is the error one of this guest? Other errors keep every guest from running.
    pub fn is_of_guest(&self) -> bool {
        matches!(
            self,
            Self::NotBooted { .. }
                | Self::Died { .. }
                | Self::Full { .. }
                | Self::OutOfMemory { .. }
                | Self::Emulator { .. }
                | Self::TooLong { .. }
                | Self::NoMarker
                | Self::NoCounts
        )
    }

    /// Is the error a usage mistake?
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, Self::Cpus { .. } | Self::Memory { .. })
    }
}
