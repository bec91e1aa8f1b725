// Stands for the library of CUDA's toolkit that programs are linked against: it has the driver's functions, and each ends like this.

unsigned cuDriverGetVersion(int *version) {
    (void)version;
    return 34;
}

unsigned cuInit(unsigned flags) {
    (void)flags;
    return 34;
}
