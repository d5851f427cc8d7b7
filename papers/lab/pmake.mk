# Compiles six programs of the folder SOURCES, without linking.
all: cg.o is.o ep.o sor.o pca.o faces.o
%.o: $(SOURCES)/%.c
	gcc -O1 -std=gnu11 -fopenmp -c -o $@ $<
