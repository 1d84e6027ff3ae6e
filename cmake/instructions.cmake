# Flags of sources for instructions that not every CPU has. Such a source is called only where the CPU has them.
# -ffp-contract=off: fusing on its own the compiler would change bits. The warnings are gcc 12's about its own intrinsics.
set(KVHIVE_BF16_FLAGS
  "-O3;-ffp-contract=off;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vbmi;-mavx512bf16;-mfma;-Wno-uninitialized;-Wno-maybe-uninitialized")

# The same sources in plain C++, for the tests: on a CPU with AVX2 and FMA (kernels/cpu/instructions/README.md). Intrinsics
# carry vectors that the CPU lacks, hence -Wno-psabi.
set(KVHIVE_EMULATED_FLAGS "-O3;-ffp-contract=off;-mavx2;-mfma;-Wno-psabi;-DKVHIVE_EMULATED")
