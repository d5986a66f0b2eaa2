// The layer of `kvasir-bench kernels` through llama.cpp: 256 experts, top-8, hidden 3072, FFN 1024, Q4_K, as
// llama.cpp builds it for a mixture-of-experts model. Prints the median of runs with new random experts each.
//
//   git clone https://github.com/ORippler/llama.cpp && cd llama.cpp && git checkout f728adab6
//   cmake -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF
//   cmake --build build --target ggml -j
//   g++ -O2 -fopenmp -I ggml/include -o layer layer.cpp build/ggml/src/libggml.a build/ggml/src/libggml-cpu.a
//       build/ggml/src/libggml-base.a -lpthread -ldl          (one line)
//   ./layer 2          # threads; weights repacked, llama.cpp's default
//   ./layer 2 plain    # weights as they are in the file
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

static const int experts = 256, top_k = 8, hidden = 3072, ffn = 1024;
static std::mt19937 rng(1);

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// repacked returns the buffer type in which the CPU backend repacks weights, or the default where it has none.
static ggml_backend_buffer_type_t repacked(ggml_backend_t cpu) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu));
    auto extra = (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts");
    for (auto list = extra(ggml_backend_get_device(cpu)); list && *list; list++) {
        if (strstr(ggml_backend_buft_name(*list), "REPACK")) return *list;
    }
    return ggml_backend_get_default_buffer_type(cpu);
}

// fill gives all experts of w the same random weights.
static void fill(ggml_tensor *w) {
    std::normal_distribution<float> normal(0, 0.03f);
    std::vector<float> values(w->ne[0] * w->ne[1]);
    for (float &v : values) v = normal(rng);
    std::vector<char> data(ggml_nbytes(w));
    size_t one = data.size() / experts;
    ggml_quantize_chunk(w->type, values.data(), data.data(), 0, w->ne[1], w->ne[0], nullptr);
    for (int e = 1; e < experts; e++) memcpy(data.data() + e * one, data.data(), one);
    ggml_backend_tensor_set(w, data.data(), 0, data.size());
}

// pick draws top_k different experts for each row.
static void pick(ggml_tensor *ids, int rows) {
    std::vector<int> id, all(experts);
    for (int e = 0; e < experts; e++) all[e] = e;
    for (int r = 0; r < rows; r++) {
        for (int k = 0; k < top_k; k++) std::swap(all[k], all[k + rng() % (experts - k)]);
        id.insert(id.end(), all.begin(), all.begin() + top_k);
    }
    ggml_backend_tensor_set(ids, id.data(), 0, id.size() * sizeof(int));
}

static void measure(ggml_backend_t cpu, ggml_tensor *gate, ggml_tensor *up, ggml_tensor *down, int rows) {
    ggml_context *c = ggml_init({ggml_tensor_overhead() * 256 + ggml_graph_overhead(), nullptr, true});
    ggml_tensor *x = ggml_new_tensor_3d(c, GGML_TYPE_F32, hidden, 1, rows);
    ggml_tensor *ids = ggml_new_tensor_2d(c, GGML_TYPE_I32, top_k, rows);
    ggml_tensor *weights = ggml_new_tensor_3d(c, GGML_TYPE_F32, 1, top_k, rows);
    for (ggml_tensor *t : {x, ids, weights}) ggml_set_input(t);
    ggml_tensor *u = ggml_mul_mat_id(c, up, x, ids), *g = ggml_mul_mat_id(c, gate, x, ids);
    ggml_tensor *y = ggml_mul(c, ggml_mul_mat_id(c, down, ggml_swiglu_split(c, g, u), ids), weights);
    ggml_tensor *sum = nullptr;
    for (int k = 0; k < top_k; k++) {
        ggml_tensor *one = ggml_view_2d(c, y, hidden, rows, y->nb[2], k * y->nb[1]);
        sum = sum ? ggml_add(c, sum, one) : one;
    }
    ggml_set_output(sum);
    ggml_cgraph *graph = ggml_new_graph(c);
    ggml_build_forward_expand(graph, sum);
    ggml_gallocr_t memory = ggml_gallocr_new(ggml_backend_get_default_buffer_type(cpu));
    if (!ggml_gallocr_alloc_graph(memory, graph)) exit(1);

    std::normal_distribution<float> normal(0, 1);
    std::vector<float> values(hidden * rows), gates(top_k * rows, 1.0f / top_k);
    for (float &v : values) v = normal(rng);
    ggml_backend_tensor_set(x, values.data(), 0, values.size() * sizeof(float));
    ggml_backend_tensor_set(weights, gates.data(), 0, gates.size() * sizeof(float));
    std::vector<double> times;
    for (double start = now(); times.size() < 200 && (times.size() < 6 || now() - start < 3);) {
        pick(ids, rows);
        double begin = now();
        ggml_backend_graph_compute(cpu, graph);
        times.push_back(now() - begin);
    }
    times.erase(times.begin()); // the first one warms up
    std::sort(times.begin(), times.end());
    double median = times[times.size() / 2];
    printf("%4d rows: %8.2f ms, %6.0f tokens/s, median of %zu\n", rows, median * 1e3, rows / median, times.size());
    ggml_gallocr_free(memory);
    ggml_free(c);
}

int main(int argc, char **argv) {
    ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(cpu, argc > 1 ? atoi(argv[1]) : 1);
    bool plain = argc > 2 && !strcmp(argv[2], "plain");
    ggml_context *c = ggml_init({ggml_tensor_overhead() * 4, nullptr, true});
    ggml_tensor *gate = ggml_new_tensor_3d(c, GGML_TYPE_Q4_K, hidden, ffn, experts);
    ggml_tensor *up = ggml_new_tensor_3d(c, GGML_TYPE_Q4_K, hidden, ffn, experts);
    ggml_tensor *down = ggml_new_tensor_3d(c, GGML_TYPE_Q4_K, ffn, hidden, experts);
    if (!ggml_backend_alloc_ctx_tensors_from_buft(c, plain ? ggml_backend_get_default_buffer_type(cpu) : repacked(cpu))) return 1;
    for (ggml_tensor *w : {gate, up, down}) fill(w);
    for (int rows : {1, 8, 64, 128, 512}) measure(cpu, gate, up, down, rows);
}
