/* Writes blocks of every format, and the floats that ggml reads from them, to the folder given. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ggml.h"

static uint64_t state = 1;
static uint64_t next(void) {
    uint64_t z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}
static float normal(void) {
    float s = -6;
    for (int i = 0; i < 12; i++) s += (float)(next() >> 40) * 0x1p-24f;
    return s;
}
/* where the binary16 scales of a block stand, ended by -1 */
struct kind { enum ggml_type type; const char *name; int halves[3]; };
static const struct kind kinds[] = {
    {GGML_TYPE_Q4_0, "q4_0", {0, -1}}, {GGML_TYPE_Q4_1, "q4_1", {0, 2, -1}},
    {GGML_TYPE_Q5_0, "q5_0", {0, -1}}, {GGML_TYPE_Q5_1, "q5_1", {0, 2, -1}},
    {GGML_TYPE_Q8_0, "q8_0", {0, -1}},
    {GGML_TYPE_Q2_K, "q2_k", {80, 82, -1}}, {GGML_TYPE_Q3_K, "q3_k", {108, -1}},
    {GGML_TYPE_Q4_K, "q4_k", {0, 2, -1}}, {GGML_TYPE_Q5_K, "q5_k", {0, 2, -1}},
    {GGML_TYPE_Q6_K, "q6_k", {208, -1}},
    {GGML_TYPE_IQ4_NL, "iq4_nl", {0, -1}}, {GGML_TYPE_IQ4_XS, "iq4_xs", {0, -1}},
};
int main(int argc, char **argv) {
    enum { N = 512 };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const struct kind *c = &kinds[k];
        float x[N], y[2 * N];
        uint8_t b[2 * N * 4];
        for (int i = 0; i < N; i++) x[i] = 0.03f * normal();
        const size_t half = ggml_quantize_chunk(c->type, x, b, 0, 1, N, NULL);
        const size_t block = ggml_type_size(c->type);
        for (size_t at = 0; at < half; at++) b[half + at] = (uint8_t)next();
        for (size_t at = half; at < 2 * half; at += block)
            for (const int *h = c->halves; *h >= 0; h++)
                if ((b[at + *h + 1] & 0x7c) == 0x7c) b[at + *h + 1] ^= 4; /* a number */
        ggml_get_type_traits(c->type)->to_float(b, y, 2 * N);
        char path[256];
        snprintf(path, sizeof path, "%s/%s.blocks", argv[1], c->name);
        FILE *f = fopen(path, "wb");
        fwrite(b, 1, 2 * half, f);
        fclose(f);
        snprintf(path, sizeof path, "%s/%s.floats", argv[1], c->name);
        f = fopen(path, "wb");
        fwrite(y, 4, 2 * N, f);
        fclose(f);
        printf("%s %zu bytes, %d values\n", c->name, 2 * half, 2 * N);
    }
    return 0;
}
