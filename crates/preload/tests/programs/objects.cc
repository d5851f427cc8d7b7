// Static constructors that allocate, every form of new and delete, and exceptions through threads.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

struct Table {
    std::vector<double> rows;
    Table() : rows(10000, 1.5) {}
};

static Table table;
struct alignas(64) Line { char bytes[8192]; };

int main() {
    std::map<int, std::string> map;
    for (int i = 0; i < 20000; i++)
        map[i] = std::string(i % 300, 'x');
    // Volatile, because the compiler may remove unused pairs of new and delete.
    char *volatile array = new char[30001];
    delete[] array;
    char *volatile quiet = new (std::nothrow) char[30002];
    delete[] quiet;
    Line *volatile line = new Line;
    if (reinterpret_cast<unsigned long>(line) % 64)
        puts("not aligned");
    delete line;
    Line *volatile lines = new (std::nothrow) Line[2];
    delete[] lines;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([] {
            for (int i = 0; i < 2000; i++)
                try {
                    std::vector<int> big(3000, i);
                    throw std::runtime_error(std::string(5000, 'e'));
                } catch (const std::exception &error) {
                    if (std::string(error.what()).size() != 5000)
                        puts("wrong exception");
                }
        });
    for (auto &thread : threads)
        thread.join();
    try {
        // The compiler must not know that this fails.
        volatile std::size_t impossible = ~std::size_t{0} / 4;
        delete[] new char[impossible];
    } catch (const std::bad_alloc &) {
        printf("%zu %zu\n", map.size(), table.rows.size());
    }
}
