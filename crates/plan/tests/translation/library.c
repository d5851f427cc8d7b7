double library_table[65536];
static volatile double hidden_table[4096];
const char *library_tell(void) { return hidden_table[0] == 0 ? "library 1" : "library 0"; }
