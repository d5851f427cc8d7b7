//! An MPI program for tests of launchers.

use crate::Case;

/// Ranks add up numbers. With the argument `abort`, rank 1 calls `MPI_Abort`; with any other, it ends by a signal.
const PROGRAM: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc > 1 && rank == 1 && !strcmp(argv[1], "abort")) MPI_Abort(MPI_COMM_WORLD, 9);
    if (argc > 1 && rank == 1) abort();
    size_t count = 1 << 20;
    double *values = malloc(count * sizeof *values);
    double sum = 0, all = 0;
    for (size_t i = 0; i < count; i++) values[i] = rank + 1;
    for (int round = 0; round < 20; round++)
        for (size_t i = 0; i < count; i++) sum += values[(i * 4099) & (count - 1)];
    MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) printf("%d ranks, sum %.0f\n", size, all / count / 20);
    MPI_Finalize();
    return 0;
}
"#;

/// MPI implementations.
#[derive(Clone, Copy, Debug)]
pub enum Mpi {
    /// Open MPI.
    OpenMpi,
    /// MPICH, whose launcher is Hydra.
    Mpich,
}

/// Compiles the program as `app` in the case's folder.
///
/// # Panics
/// The Debian packages libopenmpi-dev and libmpich-dev are not installed.
pub fn compile_mpi_program(case: &Case, mpi: Mpi) {
    let source = case.write("app.c", PROGRAM);
    let mut compiler = case.command(match mpi {
        Mpi::OpenMpi => "mpicc.openmpi",
        Mpi::Mpich => "mpicc.mpich",
    });
    compiler
        .args(["-g", "-O1", "-o"])
        .arg(case.path("app"))
        .arg(source);
    case.run(compiler).success();
}
