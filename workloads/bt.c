/* bt: alternating directions with block-tridiagonal equations along every line, blocks of 5 x 5,
 * in the manner of NPB BT.
 *
 * Access pattern: as in adi.h. A thread's line and its 25 factors for each cell are private, on its
 * stack; most of the time is spent there. */
#include "adi.h"

/* Symmetric and diagonally dominant. */
static double coupling(int row, int column) {
    return row == column ? 0.1 : -0.01 / (1 + abs(row - column));
}

/* Gauss-Jordan on a 5 x 5 block: multiplies `right` and `value` by the inverse of the block. */
static void divide_by_block(double block[5][5], double right[5][5], double value[5]) {
    for (int k = 0; k < 5; k++) {
        double pivot = 1 / block[k][k];
        for (int j = 0; j < 5; j++) {
            block[k][j] *= pivot;
            right[k][j] *= pivot;
        }
        value[k] *= pivot;
        for (int i = 0; i < 5; i++) {
            double scale = block[i][k];
            if (i == k)
                continue;
            for (int j = 0; j < 5; j++) {
                block[i][j] -= scale * block[k][j];
                right[i][j] -= scale * right[k][j];
            }
            value[i] -= scale * value[k];
        }
    }
}

/* (1 + dt C/3 - dt d2) x = line. Off-diagonal blocks are -dt times the unit matrix. */
static void solve_line(double line[][5], size_t length) {
    double upper[SIDE_MAX][5][5];
    for (size_t i = 0; i < length; i++) {
        double block[5][5];
        for (int a = 0; a < 5; a++)
            for (int b = 0; b < 5; b++) {
                block[a][b] = (a == b) * (1 + 2 * TIME_STEP) + TIME_STEP / 3 * coupling(a, b);
                upper[i][a][b] = (a == b) * -TIME_STEP;
                if (i)
                    block[a][b] += TIME_STEP * upper[i - 1][a][b];
            }
        for (int a = 0; a < 5 && i; a++)
            line[i][a] += TIME_STEP * line[i - 1][a];
        divide_by_block(block, upper[i], line[i]);
    }
    for (size_t i = length - 1; i-- > 0;)
        for (int a = 0; a < 5; a++)
            for (int b = 0; b < 5; b++)
                line[i][a] -= upper[i][a][b] * line[i + 1][b];
}

int main(int argc, char **argv) { run(argc, argv, 36); }
