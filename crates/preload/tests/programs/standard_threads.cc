// Starts a std::thread with a function pointer and one with a lambda. Prints the function's address.
#include <cstdio>
#include <thread>

__attribute__((noinline)) static void work(int number, double *sum) { *sum += number; }

int main() {
  double sum = 0;
  std::printf("%p\n", reinterpret_cast<void *>(&work));
  std::thread(work, 1, &sum).join();
  std::thread([&sum] { sum += 2; }).join();
  return sum == 3 ? 0 : 1;
}
