/* sp: alternating directions with scalar pentadiagonal equations along every line, five unknowns
 * that do not touch each other, in the manner of NPB SP.
 *
 * Access pattern: as in adi.h. Only a thread's line and its factors are private. */
#include "adi.h"

#define DISSIPATION 0.05

static double coupling(int row, int column) {
    return row == column ? 0.02 * (row + 1) : 0;
}

/* (1 + dt C/3 - dt d2 + dt e d4) x = line, by elimination without pivoting, which the dominant
 * diagonal allows. The fourth difference only damps stiff parts, and is in no residual. */
static void solve_line(double line[][5], size_t length) {
    double upper[SIDE_MAX + 2][2];
    const double far = TIME_STEP * DISSIPATION, near = -TIME_STEP * (1 + 4 * DISSIPATION);
    for (int c = 0; c < 5; c++) {
        double middle = 1 + TIME_STEP * (coupling(c, c) / 3 + 2 + 6 * DISSIPATION);
        for (size_t i = 0; i < length; i++) {
            double diagonal = middle, right = near, value = line[i][c], left = near;
            if (i >= 2) {
                left -= far * upper[i - 2][0];
                diagonal -= far * upper[i - 2][1];
                value -= far * line[i - 2][c];
            }
            if (i >= 1) {
                diagonal -= left * upper[i - 1][0];
                right -= left * upper[i - 1][1];
                value -= left * line[i - 1][c];
            }
            upper[i][0] = right / diagonal;
            upper[i][1] = far / diagonal;
            line[i][c] = value / diagonal;
        }
        for (size_t i = length; i-- > 0;) {
            if (i + 1 < length)
                line[i][c] -= upper[i][0] * line[i + 1][c];
            if (i + 2 < length)
                line[i][c] -= upper[i][1] * line[i + 2][c];
        }
    }
}

int main(int argc, char **argv) { run(argc, argv, 64); }
