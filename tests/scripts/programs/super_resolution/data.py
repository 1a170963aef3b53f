from os import listdir, makedirs, remove
from os.path import basename, exists, join
import tarfile
import urllib.request

import torch.utils.data as data
from PIL import Image
from torchvision.transforms import CenterCrop, Compose, Resize, ToTensor


def is_image_file(filename):
    return any(filename.endswith(extension) for extension in [".png", ".jpg", ".jpeg"])


def load_img(filepath):
    img = Image.open(filepath).convert('YCbCr')
    y, _, _ = img.split()
    return y


class DatasetFromFolder(data.Dataset):
    def __init__(self, image_dir, input_transform=None, target_transform=None):
        super(DatasetFromFolder, self).__init__()
        self.image_filenames = [join(image_dir, x) for x in sorted(listdir(image_dir)) if is_image_file(x)]
        self.input_transform = input_transform
        self.target_transform = target_transform

    def __getitem__(self, index):
        input = load_img(self.image_filenames[index])
        target = input
        if self.input_transform:
            input = self.input_transform(input)
        if self.target_transform:
            target = self.target_transform(target)
        return input, target

    def __len__(self):
        return len(self.image_filenames)


def download_bsd300(dest="dataset"):
    output_image_dir = join(dest, "BSDS300/images")
    if not exists(output_image_dir):
        makedirs(dest)
        url = "http://www2.eecs.berkeley.edu/Research/Projects/CS/vision/bsds/BSDS300-images.tgz"
        print("downloading url ", url)
        file_path = join(dest, basename(url))
        with urllib.request.urlopen(url) as r, open(file_path, 'wb') as f:
            f.write(r.read())
        print("Extracting data")
        with tarfile.open(file_path) as tar:
            tar.extractall(dest)
        remove(file_path)
    return output_image_dir


def calculate_valid_crop_size(crop_size, upscale_factor):
    return crop_size - (crop_size % upscale_factor)


def input_transform(crop_size, upscale_factor):
    return Compose([CenterCrop(crop_size), Resize(crop_size // upscale_factor), ToTensor()])


def target_transform(crop_size):
    return Compose([CenterCrop(crop_size), ToTensor()])


def _get_set(split, upscale_factor):
    root_dir = download_bsd300()
    crop_size = calculate_valid_crop_size(256, upscale_factor)
    return DatasetFromFolder(join(root_dir, split),
                             input_transform=input_transform(crop_size, upscale_factor),
                             target_transform=target_transform(crop_size))


get_training_set = lambda upscale_factor: _get_set("train", upscale_factor)
get_test_set = lambda upscale_factor: _get_set("test", upscale_factor)
